"""Found by the worker."""

import time

from gnsq_lite.contrib.django import handler
from shop.models import Order


@handler("orders", "billing", concurrency=2)
def bill(message):
    number = message.body.decode()
    if number == "slow":
        print("begun slow", flush=True)
        time.sleep(1.5)
    # One statement: in SQLite two transactions that read before they write lock each other out.
    paid = [Order(number=number, billed=True)]
    Order.objects.bulk_create(paid, update_conflicts=True, unique_fields=["number"], update_fields=["billed"])
    print("billed", number, flush=True)


@handler("mails", "sender")
def send(message):
    print("sent", message.body.decode(), flush=True)
