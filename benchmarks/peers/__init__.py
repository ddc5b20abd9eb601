"""One driver per client.  A driver gets a job as JSON in ``argv[1]``, and prints a result as JSON.

A driver runs as a script in its own environment, so it does not import this package.  All drivers import :mod:`meter`,
which needs only the standard library.
"""
