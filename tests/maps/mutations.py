"""Faults in the squash map that a test of this folder must find: see `tests.mutate`."""

from tests.mutate import Mutation

MUTATIONS = (
    Mutation("ways without the residual connection", "measure/squashing/maps/traces.py", "terms = torch.cat([attended, 2 * reach[None]])", "terms = torch.cat([attended, 0 * reach[None]])", "test_measured.py::test_ways_are_the_shares_of_all_paths"),
    Mutation("ways through the wrong layer", "measure/squashing/maps/traces.py", "self.above[at, block + 1, seen]", "self.above[at, block, seen]", "test_measured.py::test_ways_are_the_shares_of_all_paths"),
    Mutation("shares of paths without the gain", "measure/squashing/maps/traces.py", "found.weights * 2.0**top", "found.weights * 2.0", "test_measured.py::test_paths_are_the_strongest"),
    Mutation("noise of the wrong token", "measure/squashing/profiles/states.py", "for place in (1, 0)", "for place in (1, 1)", "test_measured.py::test_the_end_of_the_prompt_against_two_runs"),
    Mutation("not measured told as zero", "measure/squashing/maps/measured.py", "values = np.full((len(queries), len(layers), session.positions), np.nan)", "values = np.zeros((len(queries), len(layers), session.positions))", "test_measured.py::test_what_was_not_measured_is_not_a_number"),
    Mutation("a spread without the opened query", "measure/squashing/maps/spread.py", "kept = whole[place % step :: step]", "kept = whole[::step]", "test_measured.py::test_a_spread_has_the_opened_query_and_fits"),
    Mutation("another model's query joined", "measure/squashing/maps/measured.py", "    if any(facts.get(name) != others.get(name) for name in SAME):", "    if False:", "test_live.py::test_a_model_that_was_changed_since_is_not_joined"),
    Mutation("data that ends its script", "maps/payload.py", '.replace("<", "\\\\u003c")', "", "test_payload.py::test_no_token_ends_the_data"),
    Mutation("infinity for what is too large", "maps/payload.py", "<= LARGEST]", "<= np.inf]", "test_payload.py::test_what_is_too_large_for_a_page_is_said"),
    Mutation("a map of some positions", "maps/view.py", "    if cut or found", "    if False and found", "test_payload.py::test_a_result_without_all_positions_is_no_map"),
    Mutation("code that forgets the hooks", "maps/view.py", "for change in changes)", "for change in [])", "test_payload.py::test_the_code_names_the_dtype_and_the_hooks"),
    Mutation("a page of any size", "maps/payload.py", "kept = spread(queries, opened, ", "kept = list(queries) or spread(queries, opened, ", "test_payload.py::test_a_long_prompt_is_thinned_to_six_megabytes_and_says_so"),
    Mutation("no zero left in an exponent", "maps/map.js", 'const [digits, power] = text.split("e");', 'const [digits, power] = [text, undefined];', "test_program.py::test_the_programs_own_tests"),
    Mutation("an undefined ratio told as not measured", "maps/map.js", "return undefinedRatio ?", "return false ?", "test_program.py::test_the_programs_own_tests"),
    Mutation("the colours of the map under the legend of the ribbon", "maps/map.js", "this.showLegend(this.heatLegend, range,", "this.showLegend(this.heatLegend, scale(this.all([this.row]), this.diverging),", "test_page.py::test_each_scale_of_colours_is_said"),
    Mutation("spreadsheets execute a token", "maps/map.js", "const safe = /^[=+\\-@\\t\\r\\n']/.test(token)", "const safe = false", "test_program.py::test_the_programs_own_tests"),
    Mutation("a policy for another program", "maps/page.py", "script-src '{_digest(program())}'", "script-src '{_digest(styles())}'", "test_page.py::test_it_opens_from_a_file"),
    Mutation("a map of any result", "maps/view.py", 'if function not in ("profile", "squash_map") or not whole:', "if False:", "test_measured.py::test_refusals"),
    Mutation("a click that waits for `applied`", "maps/view.py", "with locked(model, wait=False):", "with locked(model):", "test_live.py::test_a_model_in_use_is_an_error_and_no_wait"),
    Mutation("no way to cancel", "maps/live.py", "        if self.stop.is_set():", "        if False:", "test_live.py::test_it_can_be_cancelled_and_goes_on"),
    Mutation("interventions on another model", "maps/changes.py", "            if self.facts.get(name) != facts.get(name):", "            if False:", "test_changes.py::test_another_model_is_refused"),
    Mutation("interventions on other prompts", "maps/changes.py", "        if not self._measured(ids):", "        if False:", "test_changes.py::test_another_prompt_is_refused"),
    Mutation("the lower end of an interval twice", "maps/changes.py", "low.values, high.values) if low", "low.values, low.values) if low", "test_changes.py::test_the_numbers_of_families_with_their_intervals"),
    Mutation("the number of another intervention", "maps/map.js", "= cells[k].map((one) => (one === null", "= cells[0].map((one) => (one === null", "test_changes.py::test_the_numbers_of_one_sequence"),
    Mutation("an infinite number that was not measured", "maps/changes.py", "    if np.isnan(value):", "    if not np.isfinite(value):", "test_changes.py::test_what_is_not_finite_is_said"),
    Mutation("prompts refused after the measurement", "maps/view.py", "accept = None if changes is None else changes.require", "accept = None", "test_changes.py::test_a_map_of_a_model_checks_before_it_measures"),
)  # fmt: skip
