"""What becomes of an error: its summary, the parked partition, a log that does not answer."""
