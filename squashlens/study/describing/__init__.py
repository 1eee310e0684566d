"""What a study is told: descriptions, measurements, and their arguments."""
