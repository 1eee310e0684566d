"""How figures are drawn: text, themes, layout in pixels, panels and files."""
