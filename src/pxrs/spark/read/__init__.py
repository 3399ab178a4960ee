"""``spark.read.format("pxrs")`` and frames: messages of a queue as rows."""
