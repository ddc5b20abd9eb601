"""Discovery over HTTP: forms of an answer, TLS, passwords, hostile servers and silent servers."""

from __future__ import annotations

import logging
import ssl
import time
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent
import pytest

from gnsq_lite import Reader, Writer
from gnsq_lite.dialect import Dialect
from gnsq_lite.errors import OptionError
from gnsq_lite.http import LookupdClient
from gnsq_lite.net.discovery import Discovery
from gnsq_lite.options import TLSOptions
from gnsq_lite.youzan.dialect import YouzanDialect
from tests.certs import Certificates, server_context
from tests.programs import wait_for
from tests.system.http_stub import scripted, stub
from tests.system.lookupd_stubs import A, B, Found, listed, producers

# -- over HTTP --------------------------------------------------------------------------------------------------------


@pytest.mark.rule("CFG-2")
@pytest.mark.rule("DISC-3")
def test_both_forms_of_an_answer_are_read_and_each_poll_opens_a_new_connection(
    found: Found, running: Callable[[Discovery], Discovery]
) -> None:
    with stub() as bare, stub() as wrapped:
        bare.answers["/lookup"] = (200, producers(A))
        wrapped.answers["/x/lookup"] = (200, {"status_code": 200, "status_txt": "OK", "data": producers(B)})
        addresses = [bare.address, f"http://{wrapped.address}/x/"]
        discovery = running(found.discovery(addresses, lookupd_poll_interval=0.05))
        wait_for(lambda: {A, B} == set(found.endpoints), sleep=gevent.sleep)
        wait_for(lambda: min(len(bare.requests), len(wrapped.requests)) >= 3, sleep=gevent.sleep)
        discovery.stop()
        for served in (bare, wrapped):
            assert len({request.port for request in served.requests}) == len(served.requests)
            assert served.requests[0].params == {"topic": "t"}


@pytest.mark.rule("SEC-1")
def test_https_with_a_private_ca_works_and_listed_nsqlookupds_get_no_token(
    found: Found, running: Callable[[Discovery], Discovery], certs: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with stub(server_context(certs)) as secure, stub() as other, stub() as named:
        secure.answers["/lookup"] = other.answers["/lookup"] = (200, producers(A))
        tls = TLSOptions(ca_file=certs.ca)
        discovery = running(found.discovery([f"https://{secure.address}"], lookupd_tls=tls, lookupd_token="s3cret"))
        wait_for(lambda: secure.requests and found.endpoints, sleep=gevent.sleep)
        discovery.stop()
        other.answers["/listlookup"] = (200, listed(other.address, named.address))
        discovery = running(found.discovery([other.address], dialect=YouzanDialect(), lookupd_token="s3cret"))
        wait_for(lambda: other.requests and named.requests, sleep=gevent.sleep)
        discovery.stop()
    assert secure.requests[0].headers["authorization"] == "Bearer s3cret"
    assert other.requests[0].headers["authorization"] == "Bearer s3cret"
    assert "authorization" not in named.requests[0].headers
    assert "s3cret" not in caplog.text
    assert "s3cret" not in repr(discovery.health())


@pytest.mark.rule("DISC-1")
@pytest.mark.parametrize(
    ("form", "requested"),
    [
        ("{}/lookup", "/lookup"),
        ("http://{}", "/lookup"),
        ("http://{}/lookup", "/lookup"),
        ("http://{}/lookup/", "/lookup"),
        ("http://{}/x/lookup", "/x/lookup"),
    ],
)
def test_an_address_may_end_in_lookup(form: str, requested: str) -> None:
    with stub() as served:
        served.answers[requested] = (200, producers(A))
        address = form.format(served.address)
        with Reader("t", "c", print, lookupd_http_addresses=address):
            wait_for(lambda: served.requests, sleep=gevent.sleep)
        with LookupdClient(address) as client:
            assert client.lookup("t").producers
        assert {request.path for request in served.requests} == {requested}


@pytest.mark.rule("SEC-1")
def test_a_poll_reads_a_replaced_ca_file_again_and_an_unchanged_one_once(
    found: Found,
    running: Callable[[Discovery], Discovery],
    certs: Certificates,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[ssl.SSLContext] = []
    real = TLSOptions.context
    monkeypatch.setattr(TLSOptions, "context", lambda self: made.append(real(self)) or made[-1])
    file, link = tmp_path / "one.pem", tmp_path / "ca.pem"
    file.write_bytes(Path(certs.other_ca).read_bytes())
    link.symlink_to(file)
    with stub(server_context(certs)) as secure:
        secure.answers["/lookup"] = (200, producers(A))
        address = f"https://{secure.address}"
        discovery = running(
            found.discovery([address], lookupd_tls=TLSOptions(ca_file=str(link)), lookupd_poll_interval=0.05)
        )
        wait_for(lambda: discovery.health()[address].failures_in_a_row >= 3, sleep=gevent.sleep)
        assert len(made) == 1
        (tmp_path / "next.pem").write_bytes(Path(certs.ca).read_bytes())
        (tmp_path / "new").symlink_to(tmp_path / "next.pem")
        (tmp_path / "new").replace(link)
        wait_for(lambda: len(secure.requests) >= 3, sleep=gevent.sleep)
        assert len(made) == 2
        discovery.stop()


@pytest.mark.parametrize("dialect", [Dialect(), YouzanDialect()], ids=["nsq", "youzan"])
def test_the_password_of_an_address_is_sent_and_not_shown(
    found: Found, running: Callable[[Discovery], Discovery], caplog: pytest.LogCaptureFixture, dialect: Any
) -> None:
    caplog.set_level(logging.DEBUG)
    with stub() as server:
        server.answers["/lookup"] = (200, producers(A))
        address = f"http://me:s3cret@{server.address}"
        discovery = running(found.discovery([address], dialect=dialect, lookupd_poll_interval=0.05))
        wait_for(lambda: found.endpoints, sleep=gevent.sleep)
        server.answers["/lookup"] = (500, b"no")
        wait_for(lambda: "fails" in caplog.text, sleep=gevent.sleep)
    assert server.requests[0].headers["authorization"] == "Basic " + b64encode(b"me:s3cret").decode()
    assert list(discovery.health()) == [f"http://{server.address}"]
    assert "s3cret" not in caplog.text + repr(discovery.health()) + repr(found.lookups)
    assert "s3cret" not in repr(Writer(lookupd_http_addresses=f"http://me:s3cret@{server.address}"))


def test_an_unreadable_ca_file_is_an_error_at_construction(found: Found) -> None:
    with pytest.raises(OptionError, match="ca_file"):
        found.discovery(["https://one.example"], lookupd_tls=TLSOptions(ca_file="/nowhere.pem"))


def test_stopping_while_an_nsqlookupd_is_silent_is_fast_and_leaves_no_greenlet(found: Found) -> None:
    with scripted(lambda connection: time.sleep(20)) as address:
        discovery = found.discovery([address], lookupd_timeout=30.0)
        task = gevent.spawn(discovery.run)
        gevent.sleep(0.1)
        began = time.monotonic()
        discovery.stop()
        task.join(15)
        assert task.dead
        assert time.monotonic() - began < 15.0  # the answer would come after 20 s
        gevent.sleep(0)  # killed greenlets end now; a fixture checks that no greenlet is left
