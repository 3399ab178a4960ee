"""Decisions as pure functions: no clock, no thread, no socket, no file, no logging."""
