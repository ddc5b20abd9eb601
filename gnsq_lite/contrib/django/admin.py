"""The admin page of dead letters, with a retry action."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages

from gnsq_lite.contrib.django.models import DeadMessage
from gnsq_lite.contrib.django.publishing import direct_writer
from gnsq_lite.errors import NSQError


def _retry(page: Any, request: Any, queryset: Any) -> None:
    """Publish each message to its topic, so that all channels receive it, and delete the row after nsqd's OK."""
    count = 0
    try:
        for row in queryset:
            direct_writer().publish(row.topic, bytes(row.body))
            row.delete()
            count += 1
    except NSQError as error:
        page.message_user(request, f"stopped: {error}", messages.ERROR)
    page.message_user(request, f"{count} messages were published")


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


admin.site.register(DeadMessage, DeadMessageAdmin)
