"""Benchmarks of ``format("nsq")``.  ``benchmarks/README.rst`` has the method and the figures."""
