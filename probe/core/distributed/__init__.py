"""What ranks tell each other: objects, dicts and statistics over a process group."""
