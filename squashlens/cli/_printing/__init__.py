"""What the terminal shows: tables, their labels, and notes."""
