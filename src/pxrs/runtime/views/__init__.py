"""Rows of the registry and the log as plain tables, for people and for programs: one form for every surface."""
