"""The NATS connection, shared by the store and the log."""
