"""What people look at: the panel, the page that a server gives, the terminal, the report. Nothing happens on import."""
