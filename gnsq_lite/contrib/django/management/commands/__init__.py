"""``manage.py nsq_worker``."""
