"""The formats of stored batches: Arrow segments with checksums, sealed Parquet files and their manifest."""
