"""What several benchmarks share. Benchmarks themselves stand one floor up, where they are found by file name."""
