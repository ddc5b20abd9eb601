"""A small project: one app, SQLite, NSQ from the environment."""

import os

SECRET_KEY = "for tests"
INSTALLED_APPS = ["gnsq_lite.contrib.django", "shop"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ["SHOP_DATABASE"],
        "CONN_MAX_AGE": 0,
        "OPTIONS": {"timeout": 60},  # seconds a handler waits for another's write
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
NSQ = {
    "NSQD_TCP_ADDRESSES": [os.environ.get("SHOP_NSQD", "127.0.0.1:4150")],
    "READER": {"requeue_delay": 0.0, "backoff": False, "reconnect_delay": 0.1},
    "WRITER": {"publish_timeout": 20.0},
    "MIDDLEWARE": ["shop.middleware.Tracing"],
    "DRAIN_TIMEOUT": 20.0,
}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["console"], "level": "INFO"},
}
