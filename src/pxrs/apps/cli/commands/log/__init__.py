"""``pxrs log``: look at messages, seal, export, check and repair."""
