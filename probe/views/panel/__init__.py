"""Live views in a notebook: thin shells over a run directory, which is the truth. Nothing happens on import."""
