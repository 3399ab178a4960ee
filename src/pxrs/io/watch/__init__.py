"""How a process hears that a file has changed: inotify, or looking again and again."""
