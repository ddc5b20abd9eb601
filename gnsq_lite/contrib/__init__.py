"""Optional modules: give-up callbacks, outbox and inbox, Django, metrics, tracing, a pytest plugin."""
