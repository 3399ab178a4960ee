"""The log in a JetStream stream of a NATS server."""
