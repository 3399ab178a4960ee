"""Spark sessions: Java, the zip for executors, and the registration of the format."""
