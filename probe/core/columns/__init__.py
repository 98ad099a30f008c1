"""Columns of batches, dense, jagged and of objects: their rows, whether they are equal, and their plain form."""
