"""One renderer for each mark: a series spec and its numbers become a figure."""
