"""The registry in one SQLite file: the embedded default."""
