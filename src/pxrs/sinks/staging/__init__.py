"""Output that is written but not shown yet: its directory, plan and seal."""
