"""The report: one run as one file that opens anywhere. Nothing happens on import."""
