"""``df.write.format("pxrs")`` and ``writeStream``: rows of a DataFrame become messages, once."""
