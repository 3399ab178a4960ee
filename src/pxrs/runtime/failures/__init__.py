"""Handling of errors: its summary, the parked partition, a log that does not answer."""
