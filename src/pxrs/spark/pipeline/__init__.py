"""Pipelines: the batch engine on Spark, as a program or as a file."""
