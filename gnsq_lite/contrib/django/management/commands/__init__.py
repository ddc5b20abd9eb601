"""``manage.py nsq_worker`` and ``manage.py nsq_outbox``."""
