"""Read stored results, after inspecting the files, because a file may come from anywhere.

An HDF5 file can refer to other files of this machine (external storage, external links, virtual datasets), and both
formats can declare far more data than they contain. Only files with numbers and text are accepted, stored in the file
itself and small enough for memory.

The checks use what HDF5 reports about the file. They do not detect a file that attacks the HDF5 library itself.
"""

import io
import json
import math
import re
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np
import psutil
import xarray as xr

from squashlens.checks.sizes import human
from squashlens.errors import CapacityError, InputError, SquashlensError
from squashlens.saving.checksum import ATTRIBUTE, checksum
from squashlens.saving.files import as_path
from squashlens.saving.seals import COMPUTED, MEASURED, with_seals

SIGNATURE = b"\x89HDF\r\n\x1a\n"
H5: Any = h5py  # its low-level modules have no type annotations
LAYOUTS = (H5.h5d.COMPACT, H5.h5d.CONTIGUOUS, H5.h5d.CHUNKED)
FILTERS = (H5.h5z.FILTER_DEFLATE, H5.h5z.FILTER_SHUFFLE, H5.h5z.FILTER_FLETCHER32)
NUMBERS_AND_TEXT = (H5.h5t.INTEGER, H5.h5t.FLOAT, H5.h5t.STRING)
AXES = ("DIMENSION_LIST", "REFERENCE_LIST")  # netCDF stores its dimensions as references inside the file
DTYPES = re.compile(r"bool|u?int(8|16|32|64)|float(16|32|64)|object|<U[0-9]+")
KINDS = ("Dataset", "DataArray", "DataArray without a name")
PARSED = 32  # bytes of Python objects for each byte of JSON: at most two numbers of 28 bytes for "1,2,"


def opened(path: str | Path) -> xr.Dataset:
    """The Dataset in a `.nc` or `.json` file, after checking that the file contains nothing else."""
    path = as_path(path, "path")
    try:
        if not path.exists():
            raise InputError(f"There is no file {str(path)!r}.", "Check the name.")
        if not path.is_file():
            kind = "a folder" if path.is_dir() else "a pipe or device, not a file"
            raise InputError(f"{str(path)!r} is {kind}.", "Give the name of a file that `save` wrote.")
        if path.suffix not in READERS:
            raise InputError(f"Cannot read {path.name!r}: its ending is unknown.", "Give a .nc or .json file.")
        with path.open("rb") as file:
            return READERS[path.suffix](file, str(path))
    except SquashlensError:
        raise
    except MemoryError as error:
        raise CapacityError(f"{str(path)!r} does not fit into memory.", "Read it on a larger machine.") from error
    except OSError as error:
        cause = "is damaged" if error.errno is None else f"cannot be read: {error.strerror}"  # HDF5 has no numbers
        raise InputError(f"{str(path)!r} {cause}.", "Check the file and its permissions.") from error
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RuntimeError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise _refused(path, f"it cannot be read ({type(error).__name__}: {str(reason)[:200]})") from error


def _refused(name: object, why: str) -> InputError:
    return InputError(
        f"{str(name)!r} is not a result of squashlens: {why}.", "Give an undamaged file that `save` wrote."
    )


def _require_memory(n_bytes: int, name: str, remedy: str) -> None:
    free = psutil.virtual_memory().available
    if n_bytes > free:
        raise CapacityError(
            f"Reading {name!r} may take {human(n_bytes)} of memory, but only {human(free)} are free.", remedy
        )


def _netcdf(file: BinaryIO, name: str) -> xr.Dataset:
    if file.read(len(SIGNATURE)) != SIGNATURE:
        raise _refused(name, "it does not begin like an HDF5 file")
    size = file.seek(0, io.SEEK_END)
    with h5py.File(file, "r") as stored:  # one handle for both, so that the inspected file is the file that is read
        needed = _declared(stored, name)
        _require_memory(needed, name, "Read it on a larger machine, or save fewer values.")
        _require_texts(stored, size, name)
    file.seek(0)
    with xr.open_dataset(file, engine="h5netcdf", decode_times=False) as dataset:
        return dataset.load()


def _declared(stored: h5py.File, name: str) -> int:
    """Bytes of all arrays in the file; an error unless all are numbers or text in the file itself."""
    total = 0
    _require_attributes(stored, name)
    for key in list(stored.id):
        label = f"{key.decode(errors='replace')!r}"
        if stored.id.links.get_info(key).type != H5.h5l.TYPE_HARD:
            raise _refused(name, f"{label} is a link to another place")
        if stored.get(key, getclass=True) is not h5py.Dataset:
            raise _refused(name, f"{label} is not an array")
        array: Any = stored[key]
        layout = array.id.get_create_plist()
        if layout.get_layout() not in LAYOUTS:
            raise _refused(name, f"{label} is a virtual dataset, whose numbers are in other files")
        if layout.get_external_count():
            raise _refused(name, f"the numbers of {label} are in another file")
        if any(layout.get_filter(n)[0] not in FILTERS for n in range(layout.get_nfilters())):
            raise _refused(name, f"{label} is stored with an unknown filter")
        kind = array.id.get_type()
        if kind.get_class() not in NUMBERS_AND_TEXT:
            raise _refused(name, f"{label} contains neither numbers nor text")
        total += math.prod(array.shape or ()) * max(8, kind.get_size())  # 8: a reference to a text
        _require_attributes(array, name)
    return total


def _require_attributes(owner: Any, name: str) -> None:
    for key in owner.attrs:
        kind = owner.attrs.get_id(key).get_type().get_class()
        if kind not in NUMBERS_AND_TEXT and key not in AXES:
            raise _refused(name, f"the attribute {key!r} is neither a number nor text")


def _require_texts(stored: h5py.File, size: int, name: str) -> None:
    """Raise an error for texts larger than the memory, since many entries may share one long text in the file."""
    for key in stored:
        for owner in (stored[key], *(stored[key].attrs.get_id(each) for each in stored[key].attrs)):
            _require_text(owner, size, name)
    for each in stored.attrs:
        _require_text(stored.attrs.get_id(each), size, name)


def _require_text(owner: Any, size: int, name: str) -> None:
    kind = (owner.id if isinstance(owner, h5py.Dataset) else owner).get_type()
    if kind.get_class() != H5.h5t.STRING or not kind.is_variable_str():
        return
    free, count = psutil.virtual_memory().available, math.prod(owner.shape or ())
    if count * size <= free:
        return
    if not isinstance(owner, h5py.Dataset) or size > free:
        raise _refused(name, f"its {count} texts may take {human(count * size)} of memory")
    step, total, flat = max(1, free // (4 * size)), 0, owner.shape[-1] if owner.shape else 1
    for place in np.ndindex(owner.shape[:-1]):
        for start in range(0, flat, step):
            part = owner[(*place, slice(start, start + step))]
            total += sum(map(len, part))
            if total > free:
                raise _refused(name, f"its texts take more than {human(free)} of memory")


def _json(file: BinaryIO, name: str) -> xr.Dataset:
    size = file.seek(0, io.SEEK_END)
    _require_memory(PARSED * size, name, "Save it as .nc, which takes far less.")
    file.seek(0)
    content = json.loads(file.read().decode("utf-8"))
    if not isinstance(content, dict) or not {"attrs", "coords", "variables"} <= content.keys():
        raise _refused(name, "it lacks attrs, coords or variables")
    arrays = {
        part: {key: _array(each, f"{name!r}: {key!r}") for key, each in content[part].items()}
        for part in ("coords", "variables")
    }
    return xr.Dataset(arrays["variables"], coords=arrays["coords"], attrs=content["attrs"])


def _array(stored: Any, where: str) -> tuple[Any, np.ndarray, Any]:
    """Dimensions, values and attributes of a variable, checked against its declared type and shape."""
    if not isinstance(stored, dict) or not {"dims", "dtype", "data", "shape", "attrs"} <= stored.keys():
        raise ValueError(f"{where} lacks dims, dtype, data, shape or attrs")
    dims, dtype, data, shape = (stored[key] for key in ("dims", "dtype", "data", "shape"))
    if not isinstance(dtype, str) or not DTYPES.fullmatch(dtype):
        raise ValueError(f"{where} has the type {str(dtype)[:40]!r}")
    if any(type(n) is not int or n < 0 for n in shape) or len(shape) != len(dims):
        raise ValueError(f"{where} has the shape {shape!r:.60} over {len(dims)} dimensions")
    if math.prod(shape) != len(data):
        raise ValueError(f"{where} has {len(data)} values for the shape {shape}")
    text = dtype == "object" or dtype.startswith("<U")
    for value in data:
        if isinstance(value, list | dict) or (dtype.startswith("<U") and not isinstance(value, str)):
            raise ValueError(f"{where} holds a {type(value).__name__}")
        if not text and not _is_a(value, dtype):
            raise ValueError(f"{where} holds {str(value)[:40]!r} as {dtype}")
    if dtype.startswith("<U"):
        _require_memory(4 * int(dtype[2:]) * len(data), where, "Save it as .nc, which takes far less.")
        if any(len(value) > int(dtype[2:]) for value in data):
            raise ValueError(f"{where} holds a text longer than {dtype[2:]} characters")
    return dims, np.array(data, dtype=dtype).reshape(shape), stored["attrs"]


def _is_a(value: Any, dtype: str) -> bool:
    """Whether a value in JSON has exactly this type, without rounding or overflow."""
    if dtype == "bool":
        return isinstance(value, bool)
    if isinstance(value, bool):
        return False
    if dtype.startswith("float"):
        return isinstance(value, int | float) or value in ("nan", "inf", "-inf")
    return isinstance(value, int)  # NumPy raises an error for a number that the type cannot hold


READERS = {".nc": _netcdf, ".json": _json}


def unwrapped(dataset: xr.Dataset, path: object) -> xr.DataArray | xr.Dataset:
    """The DataArray or Dataset that was stored as this Dataset, with the seals that it had; an error if it was changed.

    A file that another program wrote has neither a kind nor a checksum, and is read without this comparison.
    """
    ours = {"squashlens_kind", MEASURED, COMPUTED, ATTRIBUTE} & dataset.attrs.keys()
    kind = dataset.attrs.get("squashlens_kind", "Dataset")
    if kind not in KINDS or (kind != "Dataset" and len(dataset.data_vars) != 1):
        raise _refused(path, f"it claims to be a {str(kind)[:40]!r} with {len(dataset.data_vars)} variables")
    if ours and dataset.attrs.get(ATTRIBUTE) != checksum(dataset):
        raise InputError(
            f"{str(path)!r} was changed or damaged since it was saved.",
            "Measure again. If the change is intended, open the file with xarray and save it with "
            "`squashlens.results.save`.",
        )
    text = dataset.attrs.get("provenance")
    measured, computed = (_names(dataset.attrs.get(which, "[]"), path) for which in (MEASURED, COMPUTED))
    for name in ours:
        del dataset.attrs[name]
    if kind == "Dataset":
        return with_seals(dataset, text, measured, computed)
    (name,) = dataset.data_vars
    one = dataset[name] if kind == "DataArray" else dataset[name].rename(None)
    return with_seals(one, one.attrs.get("provenance", text), measured, computed)


def _names(text: object, path: object) -> list[str]:
    """The names in a list that is stored as JSON."""
    try:
        names = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise _refused(path, f"its attribute {MEASURED} or {COMPUTED} is not a list of names")
    return names
