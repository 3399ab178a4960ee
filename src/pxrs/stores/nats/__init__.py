"""The registry in a NATS key-value bucket."""
