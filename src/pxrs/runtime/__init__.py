"""The loops: registry, producer, member, coordinator, consumer; the queue facade puts them together."""
