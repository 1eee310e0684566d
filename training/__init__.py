"""How the bundled models were trained: run from a checkout, and not in the wheel."""
