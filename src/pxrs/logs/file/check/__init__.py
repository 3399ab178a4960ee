"""Inspection and repair of a file log."""
