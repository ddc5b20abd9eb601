"""The test suites of other NSQ clients, and nsqd's own, run against the embedded broker: nsqd says what is right."""
