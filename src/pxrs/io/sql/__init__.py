"""Connections to SQL databases, shared by the store and the sink."""
