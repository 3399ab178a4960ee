"""One member of a group: heartbeats, claims, commits, the leader's work; and the handle for operators."""
