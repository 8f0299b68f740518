"""The checks, by what they are about; each is a small function whose docstring is its claim."""
