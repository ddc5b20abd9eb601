"""The store ``"django"`` of ``on_give_up`` keeps dead letters in a table, for the admin site."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from datetime import datetime, timezone
from typing import Any

from django.db import transaction

from gnsq_lite.worker.dead import STORES, DeadLetter


class LetterTable:
    """Store of dead letters in the table ``DeadMessage`` of one database.  *alias* "" means the default database."""

    def __init__(self, alias: str = "") -> None:
        self.word = f"django:{alias}".rstrip(":")
        self._alias = alias or "default"

    def _rows(self) -> Any:
        from gnsq_lite.contrib.django.models import DeadMessage

        return DeadMessage.objects.using(self._alias)

    def keep(self, letter: DeadLetter) -> None:
        """Insert the row of a dead letter, or replace the row of the same message."""
        values = {name: _storable(getattr(letter, name)) for name in _COPIED}
        given_up = datetime.fromtimestamp(letter.given_up_at, timezone.utc)
        values |= {"message_id": letter.id.hex(), "given_up": given_up}
        self._rows().update_or_create(name=letter.name, defaults=values)

    def letters(self, rows: Any = None) -> Iterator[DeadLetter]:
        """Yield the letters of all rows, or of the queryset *rows*, in the order in which they were given up."""
        rows = self._rows() if rows is None else rows
        for key in list(rows.order_by("given_up").values_list("pk", flat=True)):
            row = self._rows().filter(pk=key).first()
            if row is not None:
                yield letter_of_row(row)

    @contextmanager
    def claim(self, letter: DeadLetter) -> Iterator[bool]:
        """Lock the row in a transaction, if the database can, and yield whether the row exists."""
        with transaction.atomic(using=self._alias):
            yield bool(self._rows().select_for_update().filter(name=letter.name).values_list("pk"))

    def remove(self, letter: DeadLetter) -> None:
        """Delete the row of a dead letter."""
        self._rows().filter(name=letter.name).delete()

    def close(self) -> None:
        """Do nothing, because Django closes the connection."""


#: Fields that a row has under the same name.
_COPIED = [spec.name for spec in fields(DeadLetter) if spec.name not in ("id", "given_up_at", "stored")]


def _storable(value: Any) -> Any:
    """Escape NUL and surrogates in a text, because PostgreSQL rejects them.  Return other values unchanged."""
    if not isinstance(value, str):
        return value
    return value.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def letter_of_row(row: Any) -> DeadLetter:
    """Convert a ``DeadMessage`` to a dead letter."""
    values = {name: getattr(row, name) for name in _COPIED}
    values |= {"id": bytes.fromhex(row.message_id), "given_up_at": row.given_up.timestamp(), "body": bytes(row.body)}
    values["stored"] = row.name
    return DeadLetter(**values)


STORES["django"] = LetterTable
