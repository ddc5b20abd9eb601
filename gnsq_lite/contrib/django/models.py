"""The outbox: messages that are stored with the rows they speak of, and published from there."""

from __future__ import annotations

from django.db import models


class OutboxMessage(models.Model):
    """A message that waits for the relay; published, it is deleted."""

    topic = models.CharField(max_length=255)
    #: Those of one topic and key go out in the order of their ids; "": in no order with others.
    key = models.CharField(max_length=255, blank=True, default="")
    body = models.BinaryField()
    #: Keywords of Writer.publish.
    options = models.JSONField(default=dict, blank=True)
    created = models.DateTimeField(auto_now_add=True)
    #: How often nsqd has refused it, why it did last, and when it is tried again.
    failures = models.PositiveIntegerField(default=0)
    error = models.TextField(blank=True, default="")
    retry_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        """The index is for the look at those that hold up others of their key."""

        indexes = (models.Index(fields=["topic", "key", "retry_at"], name="gnsq_outbox_held_up"),)

    def __str__(self) -> str:
        return f"{self.pk} to {self.topic}"


class OutboxRelay(models.Model):
    """One row, which the process locks that relays: two at once would publish all of it twice."""

    turns = models.BigIntegerField(default=0)
