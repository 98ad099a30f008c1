"""The live model of a run: bounded tables that follow it, and the messages that bring them to a browser. No widget."""
