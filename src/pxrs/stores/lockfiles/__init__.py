"""The registry as lock files and offset files in a directory that ``ls`` and ``cat`` explain."""
