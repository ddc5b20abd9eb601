"""The app for INSTALLED_APPS.  It provides two commands of ``manage.py``, and checks the setting ``NSQ``."""

from __future__ import annotations

import importlib

from django.apps import AppConfig
from django.core.checks import register


class NSQConfig(AppConfig):
    """Configuration of the app ``gnsq_lite.contrib.django``."""

    name = "gnsq_lite.contrib.django"
    label = "gnsq_lite"
    verbose_name = "NSQ"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks and the store of dead letters."""
        import gnsq_lite.contrib.django.dead  # noqa: F401
        from gnsq_lite.contrib.django.checks import check_settings
        from gnsq_lite.contrib.django.registry import has_tasks

        register(check_settings, "nsq")
        if has_tasks():
            importlib.import_module("gnsq_lite.contrib.django.tasks")  # Django then checks the backends of TASKS
