"""Results and journals on disk: formats, checksums, and files that other programs wrote."""
