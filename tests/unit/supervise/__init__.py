"""The supervisor's parts, without processes."""
