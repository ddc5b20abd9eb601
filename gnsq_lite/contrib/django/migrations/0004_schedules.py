"""Creates the table of schedules."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = (("gnsq_lite", "0003_inbox"),)
    operations = (
        migrations.CreateModel(
            name="OutboxSchedule",
            fields=[
                ("name", models.CharField(max_length=255, primary_key=True, serialize=False)),
                ("last", models.FloatField()),
            ],
        ),
    )
