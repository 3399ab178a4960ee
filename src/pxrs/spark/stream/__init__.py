"""``spark.readStream.format("pxrs")``: Structured Streaming, alone or as a member of a group."""
