"""Sealed segments of a partition: which there are, and what was deleted."""
