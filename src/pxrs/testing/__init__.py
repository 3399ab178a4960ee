"""Shipped for whoever writes a driver or a test: conformance suites and stores that are broken on purpose."""
