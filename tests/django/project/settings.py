"""A small project: one app, two databases of SQLite or PostgreSQL, NSQ from the environment."""

import json
import os

import django

SECRET_KEY = "for tests"
INSTALLED_APPS = ["gnsq_lite.contrib.django", "shop"]


def database(name):
    if "SHOP_POSTGRES" in os.environ:  # the folder of its socket
        where = {"NAME": name, "HOST": os.environ["SHOP_POSTGRES"], "USER": "shop"}
        return {"ENGINE": "django.db.backends.postgresql", "CONN_MAX_AGE": 600, "CONN_HEALTH_CHECKS": True, **where}
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ["SHOP_DATABASE"] + ("" if name == "shop" else "." + name),
        "CONN_MAX_AGE": 0,
        "OPTIONS": {"timeout": 60},  # seconds a handler waits for another's write
    }


DATABASES = {"default": database("shop"), "other": database("other")}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
NSQ = {
    "NSQD_TCP_ADDRESSES": [os.environ.get("SHOP_NSQD", "127.0.0.1:4150")],
    "READER": {"requeue_delay": 0.0, "backoff": False, "reconnect_delay": 0.1},
    "WRITER": {"publish_timeout": 20.0},
    "MIDDLEWARE": ["shop.middleware.Tracing"],
    "DRAIN_TIMEOUT": 20.0,
    "OUTBOX": os.environ.get("SHOP_OUTBOX", "").split(),
    "OUTBOX_INTERVAL": 0.05,
}
if "SHOP_TASKS" in os.environ:  # JSON
    TASKS = json.loads(os.environ["SHOP_TASKS"])
    if django.VERSION < (6, 0):
        INSTALLED_APPS.append("django_tasks")
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["console"], "level": "INFO"},
}
