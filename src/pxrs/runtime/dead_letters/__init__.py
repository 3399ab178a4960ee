"""Messages that could not be processed: how they are kept, counted, shown and sent again."""
