"""Faults in the bundled model's making that a test of this folder must find: see `tests.mutate`."""

from tests.mutate import Mutation

MUTATIONS = (
    Mutation("ones and zeros alike", "zoo/curriculum.py", "p: float = 0.7", "p: float = 0.5", "test_training.py::test_patterns"),
    Mutation("the best length as the worst", "zoo/evaluate.py", 'part.nsmallest(1, "accuracy")', 'part.nlargest(1, "accuracy")', "test_bundled.py::test_the_card_quotes_the_table"),
    Mutation("digits that are one token together", "zoo/tokenizer.py", r'_PIECE = r"[A-Za-z]+|[^A-Za-z\s]"', r'_PIECE = r"[A-Za-z]+|\d+|[^A-Za-z\s]"', "test_tokenizer.py::test_every_digit_and_comma_is_a_token"),
    Mutation("a branch that sees the digit behind its cut", "zoo/train.py", "(place < end[:, :, None])", "(place <= end[:, :, None])", "test_training.py::test_a_packed_row_equals_a_pass_for_every_cut"),
)  # fmt: skip
