"""Benchmarks of gnsq_lite and other NSQ clients.  ``python -m benchmarks`` runs them; README.rst has the method."""
