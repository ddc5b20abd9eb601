"""The app for INSTALLED_APPS; it provides ``manage.py nsq_worker``."""

from __future__ import annotations

from django.apps import AppConfig


class NSQConfig(AppConfig):
    """``gnsq_lite.contrib.django``; its models are the outbox's."""

    name = "gnsq_lite.contrib.django"
    label = "gnsq_lite"
    verbose_name = "NSQ"
    default_auto_field = "django.db.models.BigAutoField"
