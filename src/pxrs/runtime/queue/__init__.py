"""The queue: where URLs become a log, a registry, producers and consumers. The composition root."""
