"""From a key to its partition: hashes, for one key and for columns of keys."""
