"""``pxrs demo``: members that come, fail and leave, and a proof that each message was processed once."""
