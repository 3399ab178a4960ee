"""The loops: registry, producer, member, leader, consumer; the queue facade puts them together."""
