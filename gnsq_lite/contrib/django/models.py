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


class DeadMessage(models.Model):
    """A message that was given up; see :class:`gnsq_lite.worker.dead.DeadLetter`."""

    name = models.CharField(max_length=255, unique=True)
    topic = models.CharField(max_length=255)
    channel = models.CharField(max_length=255)
    body = models.BinaryField()
    message_id = models.CharField(max_length=64)
    #: When it was published, nanoseconds since 1970.
    timestamp_ns = models.BigIntegerField()
    attempts = models.PositiveIntegerField()
    nsqd_address = models.CharField(max_length=255)
    given_up = models.DateTimeField(db_index=True)
    host = models.CharField(max_length=255)
    error_type = models.CharField(max_length=255, blank=True, default="")
    error = models.TextField(blank=True, default="")
    traceback = models.TextField(blank=True, default="")

    def __str__(self) -> str:
        return f"{self.topic}/{self.channel}: {self.error_type} {self.error}"[:100]


class InboxMessage(models.Model):
    """A message that was handled; see :func:`gnsq_lite.contrib.django.once`."""

    #: Topic and channel.
    consumer = models.CharField(max_length=130)
    message = models.CharField(max_length=255)
    handled_at = models.DateTimeField(db_index=True)

    class Meta:
        """A key is handled once by each consumer."""

        constraints = (models.UniqueConstraint(fields=["consumer", "message"], name="gnsq_inbox_once"),)

    def __str__(self) -> str:
        return f"{self.message} of {self.consumer}"
