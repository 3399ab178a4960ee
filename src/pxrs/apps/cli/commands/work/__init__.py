"""``pxrs work``: Python handlers in supervised processes."""
