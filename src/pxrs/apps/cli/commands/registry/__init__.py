"""``pxrs registry``: dump, load, copy and adopt a registry."""
