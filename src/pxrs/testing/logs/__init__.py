"""The promises of a log, one by one, for the conformance suite."""
