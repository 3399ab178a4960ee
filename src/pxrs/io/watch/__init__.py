"""Notices that a file has changed: by inotify, or by looking again and again."""
