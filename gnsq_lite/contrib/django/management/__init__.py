"""Django looks for commands below."""
