"""Metric names, the metrics page, and the log lines of a group's events."""
