"""What a figure is given: results, what they say of themselves, and one prompt of several."""
