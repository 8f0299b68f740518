"""Interchangeable multi-head attention implementations: one file each, registered by its own description."""
