"""The ports of the runtime, between members, engines and sinks: sinks, events, counters."""
