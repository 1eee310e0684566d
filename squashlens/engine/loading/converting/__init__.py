"""Convert GGUF files, also those that packages carry, to Hugging Face folders, which are kept in a cache."""
