"""Optional integrations: give-up callbacks, Django, Prometheus, a pytest plugin and others."""
