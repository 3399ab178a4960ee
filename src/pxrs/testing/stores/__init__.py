"""The promises of a registry store, one by one, for the conformance suite."""
