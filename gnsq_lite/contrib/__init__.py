"""Parts beside the core: give-up callbacks, Django, Prometheus, a pytest plugin."""
