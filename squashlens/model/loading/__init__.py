"""Load a bundled model, a local folder or a Hugging Face model, and check its files before anything is measured."""
