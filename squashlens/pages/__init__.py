"""The HTML report: sections with figures, sentences computed from the results, and the page template."""
