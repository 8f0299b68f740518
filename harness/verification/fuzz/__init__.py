"""Search for wrong answers that no written check thought of: generated cases, in child processes, shrunk.

``cases`` says what a generated case is, ``strategies`` draws cases, ``trial`` runs one in a child, and ``search``
spends a budget of seconds and gives findings. Only ``strategies`` and ``search`` need Hypothesis.
"""
