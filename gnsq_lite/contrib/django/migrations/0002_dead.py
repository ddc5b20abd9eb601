"""Creates the table of dead letters."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = (("gnsq_lite", "0001_outbox"),)
    operations = (
        migrations.CreateModel(
            name="DeadMessage",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=255, unique=True)),
                ("topic", models.CharField(max_length=255)),
                ("channel", models.CharField(max_length=255)),
                ("body", models.BinaryField()),
                ("message_id", models.CharField(max_length=64)),
                ("timestamp_ns", models.BigIntegerField()),
                ("attempts", models.PositiveIntegerField()),
                ("nsqd_address", models.CharField(max_length=255)),
                ("given_up", models.DateTimeField(db_index=True)),
                ("host", models.CharField(max_length=255)),
                ("error_type", models.CharField(blank=True, default="", max_length=255)),
                ("error", models.TextField(blank=True, default="")),
                ("traceback", models.TextField(blank=True, default="")),
            ],
        ),
    )
