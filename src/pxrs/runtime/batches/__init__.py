"""The batch engine: pipelines take ranges of several partitions and commit them together."""
