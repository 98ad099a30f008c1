"""A run in a terminal: the panel's numbers as text, as lines and as JSON. Nothing happens on import."""
