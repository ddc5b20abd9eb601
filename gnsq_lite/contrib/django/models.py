"""Models of the outbox, the inbox and the dead letters."""

from __future__ import annotations

from django.db import models


class OutboxMessage(models.Model):
    """A message that waits for the relay.  See :mod:`gnsq_lite.contrib.outbox`.

    The relay deletes the row after nsqd has accepted the message.  Times are seconds since 1970.
    """

    topic = models.CharField(max_length=255)
    #: Messages of one topic and key are published in the order of their ids.  Messages without a key have no order.
    ordering_key = models.CharField(max_length=255, blank=True, default="")
    body = models.BinaryField()
    #: Keywords of Writer.publish, as JSON.
    options = models.TextField(blank=True, default="{}")
    #: Time at which to publish the message; and the time of the relay's next attempt (0: at once).
    publish_at = models.FloatField()
    due_at = models.FloatField(default=0.0)
    #: Number of times nsqd refused the message, and the last error.
    failures = models.IntegerField(default=0)
    error = models.TextField(blank=True, default="")

    class Meta:
        """Indexes for messages that are due, and for refused messages that delay later messages of their key."""

        indexes = (
            models.Index(fields=["due_at", "id"], name="gnsq_outbox_due"),
            models.Index(fields=["topic", "ordering_key", "id"], name="gnsq_outbox_held_up"),
        )

    def __str__(self) -> str:
        return f"{self.pk} to {self.topic}"


class OutboxRelay(models.Model):
    """The table of the relays' lock, which is one row.  Without the lock, two relays would publish a message twice."""

    turns = models.BigIntegerField(default=0)


class OutboxSchedule(models.Model):
    """The last due time of a schedule, in seconds since 1970.  See :mod:`gnsq_lite.contrib.outbox_schedules`."""

    name = models.CharField(max_length=255, primary_key=True)
    last = models.FloatField()

    def __str__(self) -> str:
        return str(self.name)


class DeadMessage(models.Model):
    """A dead letter, which is a message that was given up.  See :class:`gnsq_lite.worker.dead.DeadLetter`."""

    name = models.CharField(max_length=255, unique=True)
    topic = models.CharField(max_length=255)
    channel = models.CharField(max_length=255)
    body = models.BinaryField()
    message_id = models.CharField(max_length=64)
    #: Time of publishing, in nanoseconds since 1970.
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
    """The key of a handled message.  See :func:`gnsq_lite.contrib.django.once`."""

    #: Topic and channel.
    consumer = models.CharField(max_length=130)
    message = models.CharField(max_length=255)
    handled_at = models.DateTimeField(db_index=True)

    class Meta:
        """Constraint: each consumer handles a key once."""

        constraints = (models.UniqueConstraint(fields=["consumer", "message"], name="gnsq_inbox_once"),)

    def __str__(self) -> str:
        return f"{self.message} of {self.consumer}"
