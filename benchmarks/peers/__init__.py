"""One program per client: takes a job as JSON in ``argv[1]``, prints a result as JSON.

Each runs as a script in an environment of its own, so none imports this package; all share :mod:`meter`, which needs
nothing but the standard library.
"""
