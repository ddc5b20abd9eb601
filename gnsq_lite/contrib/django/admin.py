"""The admin pages of dead letters, with a retry action, and of schedules, with an action that runs them now."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Any

from django.contrib import admin, messages
from django.utils.module_loading import autodiscover_modules

from gnsq_lite.contrib.django.conf import nsq_settings
from gnsq_lite.contrib.django.dead import LetterTable
from gnsq_lite.contrib.django.models import DeadMessage, OutboxSchedule
from gnsq_lite.contrib.django.outbox import outbox_databases, schedules, source
from gnsq_lite.worker.redrive import Redrive


def _retry(page: Any, request: Any, queryset: Any) -> None:
    """Publish each message to its topic and nsqd, as ``gnsq-lite dead retry`` does, and delete the row after the OK."""

    def warn(text: str) -> None:
        page.message_user(request, text, messages.WARNING)

    store = LetterTable(queryset.db)
    with Redrive(nsq_settings().get("WRITER", {}), report=warn) as redrive:
        for letter in store.letters(queryset):
            redrive.publish(store, letter)
    for line in redrive.summary():
        warn(line)
    page.message_user(request, f"{redrive.published.total()} messages were published")


class DeadMessageAdmin(admin.ModelAdmin):
    """Shows, retries and deletes dead letters."""

    list_display = ("given_up", "topic", "channel", "attempts", "__str__")
    list_filter = ("topic", "channel", "error_type", "given_up")
    search_fields = ("error", "nsqd_address", "message_id")
    actions = (admin.action(description="Publish to their topic again", permissions=["delete"])(_retry),)

    def has_add_permission(self, request: Any) -> bool:
        """Return False, because only handlers create dead letters."""
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        """Return False, because dead letters are read-only."""
        return False


def _declared(alias: str) -> dict[str, Any]:
    autodiscover_modules("nsq")
    return {each.name: each for each in schedules(alias)} if alias in outbox_databases() else {}


def _run_now(page: Any, request: Any, queryset: Any) -> None:
    """Store the message of each schedule in the outbox now.  Its next due time does not change."""
    count, declared = 0, _declared(queryset.db)
    for row in queryset:
        each = declared.get(row.name)
        if each is None:
            page.message_user(request, f"{row.name}: no app declares it", messages.ERROR)
            continue
        with source(queryset.db).begin() as table:
            table.store(each.topic, each.body_for(time.time()), **each.options)
        count += 1
    page.message_user(request, f"{count} messages were stored")


class OutboxScheduleAdmin(admin.ModelAdmin):
    """Shows the last and the next due time of each schedule.  A schedule that no app declares can be deleted."""

    list_display = ("name", "last_due", "next_due")
    actions = (admin.action(description="Run now", permissions=["delete"])(_run_now),)

    def last_due(self, row: OutboxSchedule) -> str:
        """Return the last due time."""
        return _utc(row.last)

    def next_due(self, row: OutboxSchedule) -> str:
        """Return the next due time."""
        each = _declared(row._state.db or "default").get(row.name)
        return "not declared" if each is None else _utc(each.schedule.next_after(row.last))

    def has_add_permission(self, request: Any) -> bool:
        """Return False, because the apps' nsq.py declare the schedules."""
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        """Return False, because only relays change the rows."""
        return False


def _utc(when: float) -> str:
    return datetime.fromtimestamp(when, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


admin.site.register(DeadMessage, DeadMessageAdmin)
admin.site.register(OutboxSchedule, OutboxScheduleAdmin)
