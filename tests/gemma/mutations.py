"""Faults that only a model of a user's size shows, which a test of this folder must find: see `tests.mutate`."""

from tests.mutate import Mutation

MUTATIONS = (
    Mutation(
        "any file of the package",
        "engine/loading/converting/packaged.py",
        "if digest.hexdigest() != self.sha256:",
        "if False:",
        "test_gemma.py::test_another_file_under_the_name_is_refused",
    ),
    Mutation(
        "logits of all rows at once",
        "engine/running/unembed.py",
        "max(1, min(MOST, ROOM // (COPIES * int(model.cfg.d_vocab))))",
        "MOST",
        "test_gemma.py::test_logits_are_made_in_pieces_that_fit",
    ),
)
