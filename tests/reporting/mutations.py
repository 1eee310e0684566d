"""Faults in the report that a test of this folder must find: see `tests.mutate`."""

from tests.mutate import Mutation

MUTATIONS = (
    Mutation("the highest third told as the lowest", "reporting/answer.py", "int(np.argmin(norms))", "int(np.argmax(norms))", "test_answer.py::test_it_says_what_the_numbers_say"),
    Mutation("a distance below its noise floor told", "reporting/answer.py", "if far <= noise", "if False", "test_answer.py::test_it_says_when_it_cannot"),
    Mutation("the last layer told as where influence ends", "reporting/answer.py", "zip(layers[:-1], shares[:-1], strict=True)", "zip(layers, shares, strict=True)", "test_answer.py::test_it_says_when_it_cannot"),
    Mutation("closer for farther", "reporting/collapse_sentences.py", "(ratio < 1).sum()", "(ratio > 1).sum()", "test_collapse_sentences.py"),
    Mutation("separators always help", "reporting/collapse_sentences.py", "if up >= CLEAR * n", "if up >= 0", "test_collapse_sentences.py"),
    Mutation("control characters in a command", "reporting/page.py", "shlex.quote(word) if escape(word) == word else _written_out(word)", "shlex.quote(word)", "test_page.py"),
    Mutation("below for above", "reporting/sentences.py", "(bound < truth).sum()", "(bound > truth).sum()", "test_sentences.py"),
    Mutation("early for late", "reporting/sentences.py", "    if rank.rho < 0:", "    if rank.rho > 0:", "test_sentences.py"),
    Mutation("strength by ρ alone", "reporting/strength.py", "sorted((abs(self.low), abs(self.high)))", "(abs(self.rho), abs(self.rho))", "test_sentences.py"),
    Mutation("a direction by significance alone", "reporting/strength.py", "self.measured and (self.low > 0 or self.high < 0) and", "self.measured and", "test_sentences.py"),
    Mutation("a direction without Holm", "reporting/strength.py", " and self.p < TEST", "", "test_sentences.py"),
    Mutation("the right side on both sides", "figures/theory/statements.py", "[one.left for one in exhibit.rows]", "[one.right for one in exhibit.rows]", "test_statements_page.py::test_the_figure_has_both_sides_of_each"),
    Mutation("sequences too short for a curve", "reporting/collapse.py", "if n < 3:", "if n < 1:", "test_collapse_sentences.py::test_a_model_that_cannot_be_asked_is_told_so"),
    Mutation("rounding told as a number", "reporting/statements.py", "ROUNDING = 1e-12", "ROUNDING = 1e-20", "test_statements_page.py::test_the_page_says_both_sides_and_what_is_broken"),
    Mutation("a premise that is kept", "theory/statements/gallery.py", "1.5 * pattern(10)", "1.0 * pattern(10)", "test_statements_page.py::test_an_exhibit_holds_at_every_size_and_not_without_its_premise"),
    Mutation("results of another model used", "reporting/paper/kept.py", 'model = {"model": self.model} if part.of_model else {}', "model = {}", "test_paper.py::test_other_settings_or_another_model_are_refused"),
    Mutation("other settings used", "reporting/paper/kept.py", "        if any_settings:", "        if True:", "test_paper.py::test_other_settings_or_another_model_are_refused"),
    Mutation("a file of something else used", "reporting/paper/kept.py", "if stated is None or not signed:", "if stated is None and not signed and False:", "test_paper.py::test_a_file_of_something_else_is_refused"),
    Mutation("everything measured again", "reporting/paper/write.py", "        if found[part.name] is None:", "        if True:", "test_paper.py::test_nothing_is_measured_or_drawn_twice"),
    Mutation("results kept at the end only", "reporting/paper/write.py", "                kept.keep(part, found[part.name])", "                _ = [kept.keep(p, found[p.name]) for p in parts if part is parts[-1]]", "test_paper.py::test_killed_halfway_nothing_finished_is_lost"),
    Mutation("one failure stops all figures", "reporting/paper/write.py", "                failed[number] = error\n", "                raise\n", "test_paper.py::test_a_figure_that_cannot_be_measured_stops_no_other"),
    Mutation("random digits without a one at the end", "reporting/paper/parts.py", 'prefix=COUNT, ending="1")', "prefix=COUNT)", "test_paper.py::test_random_digits_end_in_a_one_as_in_the_paper"),
    Mutation("sampled answers that are greedy", "reporting/paper/parts.py", "TEMPERATURE if number > 5 else 0.0", "0.0", "test_paper.py::test_a_model_that_is_not_bundled_is_asked_with_the_papers_words"),
    Mutation("one of several most common answers", "reporting/paper/captions.py", "np.flatnonzero(said == said.max())", "np.flatnonzero(said == said.max())[:1]", "test_paper.py::test_a_tie_is_told"),
    Mutation("first wrong where it is right", "reporting/paper/captions.py", "lengths[~right][0]", "lengths[right][0]", "test_paper.py::test_captions_say_what_the_answers_were"),
    Mutation("the embeddings' distances as data", "reporting/paper/drawings.py", "one.isel(layer=[-1])", "one.isel(layer=[0])", "test_paper.py::test_what_a_folder_has"),
    Mutation("dashes as ligatures", "reporting/paper/latex.py", r'LIGATURES.sub("\\1\0", plain)', "plain", "test_paper.py::test_latex_separates_ligatures"),
    Mutation("markup in captions", "reporting/paper/index.py", r'r"\\\1", escape(', r'r"\1", escape(', "test_paper.py::test_markdown_stays_text"),
)  # fmt: skip
