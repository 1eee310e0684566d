"""The results of stored cells as Datasets, of which those that were read last stay in memory."""

from collections import OrderedDict

import xarray as xr

from squashlens.saving.stored import parsed
from squashlens.study.storing.store import Store, Stored

KEPT = 256 << 20  # bytes of files of which the contents stay in memory, and of a Dataset that is signed


def dataset_in(found: Stored) -> xr.Dataset:
    """The result in a cell, as the Dataset that is stored."""
    return parsed(found.content, found.header["ending"], found.header["key"])


class Reader:
    """The contents of cells, of which the last are kept."""

    def __init__(self, store: Store) -> None:
        self.store, self.kept, self.size = store, OrderedDict(), 0

    def get(self, key: str) -> xr.Dataset | None:
        if key not in self.kept:
            stored = self.store.read(key)
            if stored is None:
                return None
            self.kept[key] = dataset_in(stored)
            self.size += self.kept[key].nbytes
            while self.size > KEPT and len(self.kept) > 1:
                self.size -= self.kept.popitem(last=False)[1].nbytes
        self.kept.move_to_end(key)
        return self.kept[key]

    def __deepcopy__(self, memo: object) -> "Reader":
        return self
