"""Faults in figures that a test of this folder must find: see `tests.mutate`."""

from tests.mutate import Mutation

MUTATIONS = (
    Mutation("a mean for the median of a change", "figures/_changes.py", "x=[np.median(values)]", "x=[np.mean(values)]", "test_change_figures.py"),
    Mutation("names of changes as markup", "figures/_changes.py", "html.escape(name) for", "name for", "test_change_figures.py"),
    Mutation("D at the embedding", "figures/_changes.py", 'found["distance"].isel(layer=-1)', 'found["distance"].isel(layer=0)', "test_change_figures.py"),
    Mutation("the last token's share for the first's", "figures/_changes.py", 'found["bound"].isel(content=0)', 'found["bound"].isel(content=-1)', "test_change_figures.py"),
    Mutation("zeros on a logarithm", "figures/_changes.py", 'own[own > 0] if kind == "size" else own', "own", "test_change_figures.py"),
    Mutation("a band upside down", "figures/_changes.py", "*low.values[::-1]]", "*low.values]", "test_change_figures.py"),
    Mutation("separators as markup", "figures/_separators.py", "“{label(str(name))}”", "“{name}”", "test_change_figures.py"),
    Mutation("the best as the worst is high", "figures/_separators.py", 'float(prescribed["separation"].max())', 'float(prescribed["separation"].min())', "test_change_figures.py"),
    Mutation("a ratio's distance from zero", "figures/_separators.py", "z=np.log(shown)", "z=shown", "test_change_figures.py"),
    Mutation("the middle half as everything", "figures/_separators.py", "np.quantile(values, [0.25, 0.5, 0.75])", "np.quantile(values, [0, 0.5, 1])", "test_change_figures.py"),
    Mutation("lengths without an effect drawn", "figures/_separators.py", "values[np.isfinite(values)]", "np.nan_to_num(values)", "test_change_figures.py"),
    Mutation("dimensions that are not looked at", "checks/results.py", "here is None or not", "here is None and not", "test_given.py"),
    Mutation("layers that were not measured", "checks/results.py", "if value not in measured:", "if False:", "test_given.py"),
    Mutation("merged anew drawn as grown", "figures/_tokenization.py", 'np.where(here["grows"].values, 1, 2)', 'np.where(here["grows"].values, 1, 1)', "test_tokenization_figures.py"),
    Mutation("boxes a place too far", "figures/_tokenization.py", "base=ends - widths", "base=ends", "test_tokenization_figures.py"),
    Mutation("the null as its own ratio", "figures/_attribution.py", '_line(sensitivity["bound_over_null"]', '_line(sensitivity["null"]', "test_figures.py::test_attribution_draws_the_dataset"),
    Mutation("quartiles exchanged", "figures/_accuracy.py", "median, low, high = (here", "median, high, low = (here", "test_accuracy_figures.py::test_errors_single_and_mean"),
    Mutation("heads of the block below", "figures/_collapse.py", "max(chosen - 1, 0)", "max(chosen - 2, 0)", "test_collapse_figures.py::test_the_curve_draws_everything_the_dataset_has"),
    Mutation("layers from the top down", "figures/_paths.py", "share_map(shares, tokens", "share_map(shares[::-1], tokens", "test_figures.py::test_composition_draws_log_shares"),
    Mutation("what was right as what was said", "figures/_frequencies.py", "zip(NAMES, (said, truth)", "zip(NAMES, (truth, said)", "test_accuracy_figures.py::test_frequencies_stand_at_their_numbers"),
    Mutation("a share for a percentage", "figures/_heading.py", "round(100 * share, 9)", "round(share, 9)", "test_accuracy_figures.py::test_accuracy_is_drawn_for_each_mode_with_its_interval"),
    Mutation("a mean for the median of a method", "figures/_audit.py", "(over.min, over.median, over.max)", "(over.min, over.mean, over.max)", "test_audit_figure.py::test_the_ladder_shows_the_audit"),
    Mutation("shares of D at the longest length", "figures/_mechanism.py", ".sel(part=part, length=at).values", ".sel(part=part).isel(length=-1).values", "test_collapse_figures.py::test_mechanism_draws_its_steps"),
    Mutation("the rate's line a depth too low", "figures/_paths.py", "** (depth[1:] - 1)", "** depth[1:]", "test_path_figures.py::test_depth_limit_draws_what_is_left"),
    Mutation("the first run's noise for every run's", "figures/_precision.py", 'here["noise_floor"].sel(run=run)', 'here["noise_floor"].isel(run=0)', "test_collapse_figures.py::test_runs_have_their_own_distances_and_noise"),
    Mutation("a range of D crossed over", "figures/_readout.py", "y=[*high, *low[::-1]]", "y=[*high, *low]", "test_accuracy_figures.py::test_collapse_vs_readout_draws_distances_and_their_zeros"),
    Mutation("a derived rate that grows", "figures/_synthetic.py", "(x / x[middle]) ** rate", "(x / x[middle]) ** -rate", "test_synthetic_figures.py::test_convergence_draws_d_and_delta_with_their_bands"),
    Mutation("intervals as high as they are low", "figures/_theme.py", '"arrayminus": middle - low', '"arrayminus": high - middle', "test_accuracy_figures.py::test_accuracy_is_drawn_for_each_mode_with_its_interval"),
)  # fmt: skip
