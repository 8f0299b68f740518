"""Measures implementations: time in interleaved rounds, exact peak memory, and the answer at the timed shape."""
