"""Segment files: the open file, its index, and the scan that finds its end."""
