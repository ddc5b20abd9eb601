"""The loss ledger: numbered messages flow through Writers and Readers while faults, drawn from a seed, strike.

Each publish's outcomes and each handling are noted.  At the end every message that nsqd confirmed was handled (lost 0),
nsqd keeps none (left 0), and each message that was handled twice has a fault that explains it (unexplained 0)::

    python -m tests.ledger --seeds 1-200 --messages 500
"""
