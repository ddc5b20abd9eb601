"""The spool on a real S3 server whose answers are lost, late, refused or untrue."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gnsq_lite.recording.objectstore import ObjectStore, settings
from gnsq_lite.spark.objectlog import ObjectLog
from gnsq_lite.spark.spoolmeta import Meta, SpoolError
from tests.spark.gateway import PROGRAM, Gateway
from tests.spark.spoiled import Answer, Asked, Rule, Spoiled, once, refused
from tests.spark.test_objectlog import crash, read, rows, spool

Make = Callable[..., ObjectStore]

if PROGRAM:

    @pytest.fixture
    def proxy(tmp_path: Path) -> Iterator[Spoiled]:
        gateway = Gateway(tmp_path / "gateway")
        made = Spoiled(gateway.port, gateway.options("spool"))
        yield made
        made.close()
        gateway.kill()

    @pytest.fixture
    def store(proxy: Spoiled) -> Make:
        """Makes the store of a driver, with the settings given."""

        def make(url: str = "s3a://bucket/spool", **more: str) -> ObjectStore:
            given = {
                k.removeprefix("nsq.storage."): v for k, v in proxy.options.items() if k.startswith("nsq.storage.")
            }
            return ObjectStore(url, settings({**given, "endpoint": f"http://127.0.0.1:{proxy.port}", **more}))

        return make

    def goes_on(store: Make) -> None:
        """A spool's life, at which everything is asked of its store; a second driver takes it over."""
        first = spool(store())
        first.append(rows(0, 3))
        first.append(rows(3, 2))
        first.commit(first.segments[0].number)
        begin, end = first.meta.committed, first.roll()
        first.close()
        again = spool(store())
        assert read(again, begin, end) == [3, 4]
        again.append(rows(5, 1))
        assert read(again, end, again.roll()) == [5]
        again.close()

    def puts(answer: Answer) -> Rule:
        return lambda asked: answer if asked[0] == "PUT" else None

    def conflict(asked: Asked) -> Answer | None:
        """Two conditional puts at once: a store may refuse both."""
        return refused(409, "ConditionalRequestConflict") if asked[2] else None

    @pytest.mark.rule("PIPE-2")
    @pytest.mark.parametrize(
        "rule",
        [
            pytest.param(puts(Answer(lost=True)), id="answers to puts are lost"),
            pytest.param(puts(Answer(500, "InternalError")), id="puts that came say they did not"),
            pytest.param(conflict, id="two puts at once"),
            pytest.param(lambda asked: refused(503, "SlowDown"), id="slow down"),
            pytest.param(lambda asked: refused(429, "TooManyRequests"), id="too many"),
            pytest.param(lambda asked: refused(500, "InternalError"), id="internal errors"),
        ],
    )
    def test_each_call_may_fail_once(proxy: Spoiled, store: Make, rule: Rule) -> None:
        proxy.rule = once(rule)
        goes_on(store)

    def test_a_store_that_is_overloaded_while_a_spool_is_opened_is_waited_for(proxy: Spoiled, store: Make) -> None:
        left = list(range(12))
        proxy.rule = lambda asked: refused(503, "SlowDown") if left and left.pop() >= 0 else None
        goes_on(store)
        assert left == []

    @pytest.mark.rule("PIPE-2")
    def test_a_store_that_replaces_what_it_should_only_create_is_refused(proxy: Spoiled, store: Make) -> None:
        made = spool(store())
        made.append(rows(0, 2))
        meta, end = made.meta, made.roll()
        crash(made)
        proxy.replaces = True
        with pytest.raises(SpoolError, match="has no conditional puts: told to create only, it replaced"):
            spool(store())
        with pytest.raises(SpoolError, match="has no conditional puts"):
            spool(store("s3a://bucket/new"))
        proxy.replaces = False
        log_ = ObjectLog(store())
        assert log_.meta() == Meta(meta.uuid, "t", "c")
        assert max(log_.sizes()) == end, "nobody wrote"

    def test_a_store_that_knows_no_conditions_is_refused(proxy: Spoiled, store: Make) -> None:
        def rule(asked: Asked) -> Answer | None:
            return refused(501, "NotImplemented") if asked[2] else None

        proxy.rule = rule
        with pytest.raises(SpoolError, match=r"cannot be opened: .*501 Not Implemented"):
            spool(store())

    @pytest.mark.parametrize(
        ("url", "more", "why"),
        [
            ("s3a://nobucket/spool", {}, "NoSuchBucket"),
            ("s3a://bucket/spool", {"secretAccessKey": "another"}, "SignatureDoesNotMatch"),
            ("s3a://bucket/spool", {"accessKeyId": "another"}, "404 Not Found"),
        ],
    )
    def test_what_no_patience_helps_is_told_at_once(store: Make, url: str, more: dict[str, str], why: str) -> None:
        with pytest.raises(SpoolError, match=re.compile(f"cannot be opened: .*{why}", re.DOTALL)) as told:
            spool(store(url, **more))
        assert "Debug source" not in str(told.value)

    @pytest.mark.parametrize("name", ["a b", "100%", "a:b", "ünï/日本", "x+y=z~*'()", "a/"])
    def test_a_spool_may_have_any_name(store: Make, name: str) -> None:
        made = spool(store(f"s3a://bucket/{name}".rstrip("/")))
        made.append(rows(0, 2))
        assert read(made, 0, made.roll()) == [0, 1]
        made.close()
