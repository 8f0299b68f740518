"""Is it right? The oracle, the error budget, and one suite of small checks for every implementation."""
