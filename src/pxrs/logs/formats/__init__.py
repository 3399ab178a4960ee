"""How batches are stored: Arrow segments with checksums, sealed Parquet files and their manifest."""
