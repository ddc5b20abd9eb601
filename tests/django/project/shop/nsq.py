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
    Order.objects.update_or_create(number=number, defaults={"billed": True})
    print("billed", number, flush=True)


@handler("mails", "sender")
def send(message):
    print("sent", message.body.decode(), flush=True)
