"""Creates the outbox's tables, and the row that a relay locks."""

from __future__ import annotations

from typing import Any

from django.db import migrations, models


def create_lock(apps: Any, schema_editor: Any) -> None:
    """Create the row, so that two relays do not create it at the same time."""
    apps.get_model("gnsq_lite", "OutboxRelay").objects.using(schema_editor.connection.alias).create(pk=1)


class Migration(migrations.Migration):
    initial = True
    operations = (
        migrations.CreateModel(
            name="OutboxMessage",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("topic", models.CharField(max_length=255)),
                ("ordering_key", models.CharField(blank=True, default="", max_length=255)),
                ("body", models.BinaryField()),
                ("options", models.TextField(blank=True, default="{}")),
                ("publish_at", models.FloatField()),
                ("due_at", models.FloatField(default=0.0)),
                ("failures", models.IntegerField(default=0)),
                ("error", models.TextField(blank=True, default="")),
            ],
            options={
                "indexes": [
                    models.Index(fields=["due_at", "id"], name="gnsq_outbox_due"),
                    models.Index(fields=["topic", "ordering_key", "id"], name="gnsq_outbox_held_up"),
                ]
            },
        ),
        migrations.CreateModel(
            name="OutboxRelay",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("turns", models.BigIntegerField(default=0)),
            ],
        ),
        migrations.RunPython(create_lock, migrations.RunPython.noop),
    )
