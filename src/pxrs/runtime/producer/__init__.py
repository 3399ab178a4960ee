"""Sending: from ``send`` through the buffer to an append that is stored once."""
