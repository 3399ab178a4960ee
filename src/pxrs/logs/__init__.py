"""Message logs: a folder for each backend, reached by URL through ``pxrs.drivers``."""
