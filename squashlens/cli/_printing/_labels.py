"""What units, coordinates and columns are called in the tables on the terminal."""

NO_UNITS = ("1", "text")  # what numbers without a unit, and texts, have as units
# What a coordinate is called in a heading; by default its name and its value.
COORDINATES = {
    "hop": "{} hops", "from_block": "from block {}", "to_layer": "to layer {}",
    **dict.fromkeys(("quantity", "part", "edit", "hook", "format", "run", "mode", "form"), "{}"),
}  # fmt: skip
VALUES = {
    ("edit", "none"): "no separators",
    ("edit", "separators"): "with separators",
    ("edit", "delete"): "separators deleted",
    ("edit", "delete_keep_positions"): "separators deleted, positions kept",
    ("edit", "substitute"): "another token in place of separators",
    ("edit", "extra_digits"): "a digit in place of separators",
    ("edit", "random_places"): "separators at random places",
    ("hook", "mask"): "separators masked",
    ("hook", "zero_pattern"): "attention to separators zeroed",
    ("hook", "zero_value"): "values of separators zeroed",
    ("hook", "zero_resid"): "streams of separators zeroed",
    ("hook", "mean_resid"): "mean streams in place of separators'",
    ("hook", "resample_resid"): "another prompt's streams in place of separators'",
    ("to_layer", "y"): "to y",
    ("mode", "answer_only"): "answer only",
    ("mode", "cot"): "chain of thought",
    ("mode", "cot_few_shot"): "chain of thought with examples",
}
AUDIT = {
    "tightness": "bound ÷ the Jacobian that it bounds (median)",
    "least": "bound ÷ the Jacobian that it bounds (smallest)",
    "over_jacobian": "value ÷ spectral Jacobian (median)",
    "raw": "rank correlation with the Jacobian",
    "partial": "rank correlation, position held",
    "over_null": "rank correlation after division by the null",
    "cost": "time ÷ time of the exact Jacobian",
}
SEARCH = {
    "separation": "separation: median of D at the last layer",
    "gain": "separation ÷ that without separators",
    "cost": "additional tokens for each content token",
    "accuracy": "share of right answers",
}
FRAMES = {
    "audit": ("estimate", AUDIT),
    "search_separators": ("separator, every", SEARCH),
}  # tables that squashlens.results.table makes
