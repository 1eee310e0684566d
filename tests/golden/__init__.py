"""Golden numbers: what every public measurement gave on seven models when the record was made."""
