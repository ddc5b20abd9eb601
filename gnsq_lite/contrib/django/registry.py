"""Registers the handlers of a Django project, and makes the Worker that runs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, overload

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connections, reset_queries, router
from django.utils.module_loading import autodiscover_modules, import_string

from gnsq_lite.contrib.django.conf import addresses, nsq_settings
from gnsq_lite.contrib.django.outbox import interval, outbox_databases, source
from gnsq_lite.contrib.django.publishing import direct_writer
from gnsq_lite.contrib.relay import RelayInWorker
from gnsq_lite.worker import Handler, Middleware, Worker
from gnsq_lite.worker.specs import Rules, registries

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from gnsq_lite.arguments import Batch, Columns, HandlerArguments, One, Value
    from gnsq_lite.message import Message


class _Registry:
    """The registered handlers.  :func:`gnsq_lite.testing.deliver` finds the handler of a function here."""

    def __init__(self) -> None:
        self.handlers: list[Handler] = []
        registries.add(self)

    def rules(self, handler: Handler) -> Rules:
        """Return how ``manage.py nsq_worker`` calls *handler* and treats its errors."""
        return make_worker().rules(handler)


_registry = _Registry()


def _close_old_connections() -> None:
    """Close broken and old connections, except the one whose open transaction belongs to Django's TestCase."""
    for connection in connections.all(initialized_only=True):
        if not any(getattr(block, "_from_testcase", False) for block in getattr(connection, "atomic_blocks", ())):
            connection.close_if_unusable_or_obsolete()


class CloseOldConnections(Middleware[Any]):
    """Closes database connections that are broken or older than CONN_MAX_AGE, as Django does around each request.

    With DEBUG=True, it also forgets the SQL of the last message, which Django keeps until the next request.
    """

    takes_columns = True

    def before(self, message: Any) -> None:
        """Close broken or old connections without an open transaction, before the handler starts."""
        reset_queries()
        _close_old_connections()

    def after(self, message: Any) -> None:
        """Close broken or old connections after the handler returned."""
        _close_old_connections()

    def failed(self, message: Any, error: BaseException) -> None:
        """Close broken or old connections after the handler raised."""
        _close_old_connections()


@overload
def handler(
    topic: str, channel: str, *, batch_size: None = None, **options: Unpack[HandlerArguments]
) -> Callable[[One], One]: ...
@overload
def handler(
    topic: str,
    channel: str,
    *,
    batch_size: int,
    batch_format: Literal["list"] = "list",
    batch_wait: float | None = None,
    **options: Unpack[HandlerArguments],
) -> Callable[[Batch], Batch]: ...
@overload
def handler(
    topic: str,
    channel: str,
    *,
    batch_size: int,
    batch_format: Literal["pyarrow"],
    batch_wait: float | None = None,
    **options: Unpack[HandlerArguments],
) -> Callable[[Columns], Columns]: ...
@overload
def handler(
    topic: str,
    channel: str,
    *,
    decode: Callable[[bytes], Value],
    batch_size: None = None,
    **options: Unpack[HandlerArguments],
) -> Callable[[Callable[[Value, Message], None]], Callable[[Value, Message], None]]: ...
def handler(topic: str, channel: str, **options: Any) -> Callable[..., Any]:
    """Register the decorated function, in an app's ``nsq.py``, as a handler of ``manage.py nsq_worker``.

    The options are those of :meth:`gnsq_lite.Worker.handler`.  The command checks the options when it starts.
    """

    def register(function: Any) -> Any:
        _registry.handlers.append(Handler(topic, channel, function, options))
        return function

    return register


def make_worker() -> Worker:
    """Import each app's ``nsq.py``, and make a Worker with all handlers and the options in the setting ``NSQ``.

    Raises:
        ImproperlyConfigured, ImportError, OptionError, InvalidName
    """
    found = nsq_settings()
    extra = [import_string(path)() for path in found.get("MIDDLEWARE", ())]
    options = {"drain_timeout": found["DRAIN_TIMEOUT"]} if "DRAIN_TIMEOUT" in found else {}
    if aliases := outbox_databases():
        extra.append(RelayInWorker(*map(source, aliases), interval=interval(), writer=direct_writer))
    worker = Worker(middleware=[CloseOldConnections(), *extra], **options, **addresses(), **found.get("READER", {}))
    autodiscover_modules("nsq")
    for each in _registry.handlers:
        worker.add(each)
    if has_tasks():
        import_string("gnsq_lite.contrib.django.tasks.add_handlers")(worker)
    return worker


def check_tables(worker: Worker) -> None:
    """Raise ImproperlyConfigured if a handler needs a missing table of this app.  Ignore a database that is down.

    Handlers need the tables of :func:`once`, of the outbox, and of the store "django" of ``on_give_up``.
    """
    from gnsq_lite.contrib.django.models import DeadMessage, InboxMessage, OutboxMessage, OutboxSchedule

    needed = {(alias, model) for alias in outbox_databases() for model in (OutboxMessage, OutboxSchedule)}
    for each in worker.handlers:
        if hasattr(each.function, "nsq_inbox"):
            needed.add((each.function.nsq_inbox or router.db_for_write(InboxMessage), InboxMessage))
        if "django" in str(each.merged(worker.defaults).get("on_give_up")).split(","):
            needed.add((router.db_for_write(DeadMessage), DeadMessage))
    for alias, model in needed:
        try:
            is_missing = model._meta.db_table not in connections[alias].introspection.table_names()
        except DatabaseError:  # the handlers wait for the database too
            continue
        finally:
            connections[alias].close()
        if is_missing:
            why = (
                f"the table {model._meta.db_table} is missing in the database {alias!r}. You have unapplied migrations."
            )
            hint = f"Run 'python manage.py migrate --database {alias}' to apply them."
            raise ImproperlyConfigured(f"{why} {hint}")


def has_tasks() -> bool:
    """Return whether the setting ``TASKS`` has the backend of :mod:`gnsq_lite.contrib.django.tasks`."""
    backend = "gnsq_lite.contrib.django.tasks.NSQBackend"
    return any(each.get("BACKEND") == backend for each in getattr(settings, "TASKS", {}).values())
