"""PXRS: share one queue between many consumers, safely."""
