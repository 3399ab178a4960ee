"""Everything that touches the machine or a server: clock, files, locks, watches, connections."""
