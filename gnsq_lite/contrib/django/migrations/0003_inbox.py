"""Creates the table of handled messages."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = (("gnsq_lite", "0002_dead"),)
    operations = (
        migrations.CreateModel(
            name="InboxMessage",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("consumer", models.CharField(max_length=130)),
                ("message", models.CharField(max_length=255)),
                ("handled_at", models.DateTimeField(db_index=True)),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("consumer", "message"), name="gnsq_inbox_once")],
            },
        ),
    )
