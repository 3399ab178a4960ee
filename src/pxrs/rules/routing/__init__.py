"""Routing: turns a key into its partition, by hashes for one key and for columns of keys."""
