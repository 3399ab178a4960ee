"""Connections to the outside that several drivers share, made lazily in each process."""
