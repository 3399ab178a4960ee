"""The engine of consumers: one thread for each partition, with a handler or a sink."""
