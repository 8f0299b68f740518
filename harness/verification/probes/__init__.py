"""Probes by subject: what masks and NaN do, what torch's transformations do, what its compilers do."""
