"""Found by Spark through its name: makes ``spark.read.format("pxrs")`` work with no registration."""

from pxrs.spark.read.source import DefaultSource

__all__ = ["DefaultSource"]
