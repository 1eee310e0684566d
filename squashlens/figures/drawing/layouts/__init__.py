"""Where the parts of a figure are: space in pixels, axes, panels and pages."""
