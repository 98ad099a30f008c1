"""Inspecting batches: what one holds, and what two differ in; as text, HTML and widget. Nothing happens on import."""
