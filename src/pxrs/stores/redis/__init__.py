"""The registry in Redis or Valkey."""
