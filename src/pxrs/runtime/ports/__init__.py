"""What members, engines and sinks agree on: sinks, events, counters."""
