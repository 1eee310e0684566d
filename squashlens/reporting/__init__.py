"""The self-contained page: sentences that are functions of the data, and the template around them."""
