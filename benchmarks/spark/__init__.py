"""Benchmarks of ``format("nsq")``: see README.rst here."""
