"""A table in a SQL database as a fenced output."""
