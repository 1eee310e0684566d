"""Faults in the bundled model's making that a test of this folder must find: see `tests.mutate`."""

from tests.mutate import Mutation

MUTATIONS = (
    Mutation("ones and zeros alike", "zoo/curriculum.py", "p: float = 0.7", "p: float = 0.5", "test_training.py::test_patterns"),
    Mutation("the best length as the worst", "../training/gemma/evaluate.py", 'part.nsmallest(1, "accuracy")', 'part.nlargest(1, "accuracy")', "test_bundled.py::test_the_card_quotes_the_table"),
    Mutation("digits that are one token together", "../training/gemma/tokenizer.py", r'_PIECE = r"[A-Za-z]+|[^A-Za-z\s]"', r'_PIECE = r"[A-Za-z]+|\d+|[^A-Za-z\s]"', "test_tokenizer.py::test_every_digit_and_comma_is_a_token"),
    Mutation("a branch that sees the digit behind its cut", "../training/gemma/train.py", "(place < end[:, :, None])", "(place <= end[:, :, None])", "test_training.py::test_a_packed_row_equals_a_pass_for_every_cut"),
    Mutation("listings as prose", "../training/prose/extract.py", '_LEFT_OUT = {"pre", "script"', '_LEFT_OUT = {"script"', "prose/test_extract.py::test_what_is_left_out"),
    Mutation("held-out documents in the training text", "../training/prose/corpus.py", "file=held if document.held_out else training", "file=training", "prose/test_corpus.py::test_documents_are_held_out_whole_and_paragraphs_kept_once"),
    Mutation("special tokens in another order", "../training/prose/tokenizer.py", "for token in (PAD, EOS, BOS)", "for token in (BOS, EOS, PAD)", "prose/test_training.py::test_ids_of_special_tokens_are_gemmas"),
    Mutation("rows without the begin-of-text token", "../training/prose/train.py", "np.concatenate(([BOS], self._stream[start : start + length - 1]))", "self._stream[start : start + length]", "prose/test_training.py::test_every_token_of_the_text_is_in_one_row_of_an_epoch"),
    Mutation("a rate that never falls to zero", "../training/prose/train.py", "fall = (self.steps - step) /", "fall = (self.steps + 1 - step) /", "prose/test_training.py::test_the_learning_rate"),
    Mutation("a checkpoint of any recipe", "../training/prose/train.py", "if old[name] != new[name]:", "if old[name] is None:", "prose/test_training.py::test_a_checkpoint_of_another_recipe_is_refused"),
    Mutation("all mass to lower orders", "../training/prose/kneser_ney.py", "+ left * lower, lower)", "+ lower, lower)", "prose/test_kneser_ney.py::test_probabilities_sum_to_one"),
    Mutation("counts where contexts should be counted", "../training/prose/kneser_ney.py", "np.unique(grams % vocabulary ** (n - 1), return_counts=True)", "np.unique(np.repeat(grams, counts) % vocabulary ** (n - 1), return_counts=True)", "prose/test_kneser_ney.py::test_a_bigram_model_by_hand"),
    Mutation("windows without overlap", "../training/prose/measures.py", "start = max(0, scored - STRIDE)", "start = scored", "prose/test_measures.py::test_every_token_is_scored_once_and_with_half_a_context_before_it"),
    Mutation("characters for bytes", "../training/prose/measures.py", "/ math.log(2) / sum(len(d.text.encode()) for d in documents)", "/ math.log(2) / sum(len(d.text) for d in documents)", "prose/test_measures.py::test_bits_per_byte_count_bytes_of_utf_8"),
    Mutation("the wrong ending as the right one", "../training/prose/abilities.py", "nats(text, right) < nats(text, wrong)", "nats(text, right) > nats(text, wrong)", "prose/test_abilities.py::test_the_right_ending_must_be_the_more_likely"),
    Mutation("a missed target as met", "../training/prose/evaluate.py", 'total["model"] < total["kneser_ney"]', 'total["model"] < 2 * total["kneser_ney"]', "prose/test_abilities.py::test_a_missed_target_is_said"),
)  # fmt: skip
