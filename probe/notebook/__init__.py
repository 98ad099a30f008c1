"""Jupyter's side: magics, what a cell did, and training beside the notebook. Nothing happens on import."""
