"""Benchmarks of gnsq_lite beside its peers; ``python -m benchmarks`` runs them, README.rst says how and what for."""
