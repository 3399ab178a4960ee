"""``pxrs group``: show, create and seek groups."""
