"""The app's entry in INSTALLED_APPS; it makes ``manage.py nsq_worker`` known."""

from __future__ import annotations

from django.apps import AppConfig


class NSQConfig(AppConfig):
    """``gnsq_lite.contrib.django``; has no models."""

    name = "gnsq_lite.contrib.django"
    label = "gnsq_lite"
    verbose_name = "NSQ"
