"""Places orders in a transaction, and publishes each."""

from django.core.management.base import BaseCommand
from django.db import transaction

from gnsq_lite.contrib.django import writer
from shop.models import Order


class Command(BaseCommand):
    def add_arguments(self, parser):
        parser.add_argument("number")
        parser.add_argument("--how", choices=["commit", "rollback", "plain", "bad", "misspelt"], default="commit")

    def handle(self, number, how, **options):
        body = number.encode()
        if how == "plain":
            writer().publish("orders", body)
            return
        with transaction.atomic():
            Order.objects.create(number=number)
            writer().publish("orders", "text" if how == "bad" else body)
            if how == "misspelt":
                writer().publish("orders", body, defr=1.0)
            writer().multipublish("mails", [body])
            state = writer().is_idle
            print(f"in the transaction, nothing was published: {state}", flush=True)
            if how == "rollback":
                raise RuntimeError("rolled back")
