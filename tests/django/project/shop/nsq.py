"""Found by the worker."""

import os
import time

from gnsq_lite.contrib.django import handler
from shop.models import Order


def say(line):
    os.write(1, line.encode() + b"\n")  # whole: several threads and processes write here at once


@handler("orders", "billing", concurrency=2)
def bill(message):
    number = message.body.decode()
    if number == "slow":
        say("begun slow")
        time.sleep(1.5)
    # One statement: in SQLite two transactions that read before they write lock each other out.
    paid = [Order(number=number, billed=True)]
    Order.objects.bulk_create(paid, update_conflicts=True, unique_fields=["number"], update_fields=["billed"])
    say(f"billed {number}")


@handler("mails", "sender")
def send(message):
    say(f"sent {message.body.decode()}")
