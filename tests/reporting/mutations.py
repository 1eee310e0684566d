"""Faults in the report that a test of this folder must find: see `tests.mutate`."""

from tests.mutate import Mutation

MUTATIONS = (
    Mutation("closer for farther", "reporting/collapse_sentences.py", "(ratio < 1).sum()", "(ratio > 1).sum()", "test_collapse_sentences.py"),
    Mutation("separators always help", "reporting/collapse_sentences.py", "if up >= CLEAR * n", "if up >= 0", "test_collapse_sentences.py"),
    Mutation("control characters in a command", "reporting/page.py", "shlex.quote(word) if escape(word) == word else _written_out(word)", "shlex.quote(word)", "test_page.py"),
    Mutation("below for above", "reporting/sentences.py", "(bound < truth).sum()", "(bound > truth).sum()", "test_sentences.py"),
    Mutation("early for late", "reporting/sentences.py", "    if rank.rho < 0:", "    if rank.rho > 0:", "test_sentences.py"),
    Mutation("strength by ρ alone", "reporting/strength.py", "sorted((abs(self.low), abs(self.high)))", "(abs(self.rho), abs(self.rho))", "test_sentences.py"),
    Mutation("a direction by significance alone", "reporting/strength.py", "self.measured and (self.low > 0 or self.high < 0) and", "self.measured and", "test_sentences.py"),
    Mutation("a direction without Holm", "reporting/strength.py", " and self.p < TEST", "", "test_sentences.py"),
    Mutation("the right side on both sides", "figures/theory/statements.py", "[one.left for one in exhibit.rows]", "[one.right for one in exhibit.rows]", "test_statements_page.py::test_the_figure_has_both_sides_of_each"),
    Mutation("sequences too short for a curve", "reporting/collapse.py", "if digits < 3:", "if digits < 1:", "test_collapse_sentences.py::test_a_model_that_cannot_be_asked_is_told_so"),
    Mutation("rounding told as a number", "reporting/statements.py", "ROUNDING = 1e-12", "ROUNDING = 1e-20", "test_statements_page.py::test_the_page_says_both_sides_and_what_is_broken"),
    Mutation("a premise that is kept", "theory/statements/gallery.py", "1.5 * pattern(10)", "1.0 * pattern(10)", "test_statements_page.py::test_an_exhibit_holds_at_every_size_and_not_without_its_premise"),
)  # fmt: skip
