"""Registry stores: one file for each backend, reached by URL through ``pxrs.plugins``."""
