"""The log as Arrow segments in a directory: read, written, sealed, checked and repaired."""
