"""The rows of one group in a store: schema, swaps, and the guard against a store that went back."""
