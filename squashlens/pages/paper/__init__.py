"""The figures of the paper for one model: what each shows, its results on disk, its caption, and the LaTeX file."""
