"""The live panel as a page of its own: a small server for this machine alone. Nothing happens on import."""
