"""The test suites of other NSQ clients, and nsqd's own, run on the embedded broker; nsqd's results are right."""
