"""TLS, compression, AUTH and sampling through Reader and Writer, on both servers."""

from __future__ import annotations

import logging
import random
import ssl
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gnsq_lite import Reader, TLSOptions, Writer, errors
from gnsq_lite.http import NsqdClient
from tests import tls_variants
from tests.certs import Certificates, without_key_identifiers
from tests.conftest import MakeBroker
from tests.contract.authserver import AuthServer
from tests.frames import frame
from tests.programs import wait_for
from tests.servers import ServerHandle
from tests.stub_nsqd import drain, granting, hostile, read_command, steps
from tests.system.http_stub import stub

QUICK: dict[str, Any] = {"reconnect_delay": 0.05, "max_reconnect_delay": 0.2}
BODIES = [b"x", b"y" * 1000, random.Random(1).randbytes(300_000), b"z" * 900_000]


# -- SEC-1 to SEC-3


@pytest.mark.rule("SEC-1")
@pytest.mark.rule("SEC-2")
@pytest.mark.rule("SEC-3")
@pytest.mark.rule("NEG-3")
@pytest.mark.parametrize("kind", tls_variants.KINDS)
def test_all_six_combinations_publish_and_consume(
    secured: ServerHandle, certs: Certificates, topic: str, kind: str
) -> None:
    options = {**QUICK, **tls_variants.options(kind, certs.ca)}
    asked = ("tls" in kind, "snappy" in kind, "deflate" in kind)
    seen: list[bytes] = []
    with Writer(secured.tcp_address, **options) as writer:
        for body in BODIES:
            writer.publish(topic, body)
        writer.multipublish(topic, [b"%d" % n for n in range(2000)])
        granted = writer.stats().connections[0].negotiated
        assert (granted.tls_v1, granted.snappy, granted.deflate) == asked
        reader = Reader(
            topic,
            "ch",
            lambda m: seen.append(m.body),
            nsqd_tcp_addresses=secured.tcp_address,
            max_in_flight=200,
            **options,
        )
        with reader:
            wait_for(lambda: reader.stats().finished == 2000 + len(BODIES))
            client = secured.stats(topic, "ch")["clients"][0]
    assert sorted(seen) == sorted([*BODIES, *[b"%d" % n for n in range(2000)]])
    assert (client["tls"], client["snappy"], client["deflate"]) == asked


@pytest.mark.parametrize("compression", ["snappy", "deflate"])
def test_a_body_of_five_megabytes_arrives(make_broker: MakeBroker, topic: str, compression: str) -> None:
    broker = make_broker(max_msg_size=6_000_000, max_body_size=7_000_000)
    body = random.Random(2).randbytes(5_000_000)
    seen: list[bytes] = []
    options: dict[str, Any] = {"compression": compression, **QUICK}
    with Writer(broker.tcp_address, max_msg_size=6_000_000, **options) as writer:
        writer.publish(topic, body)
    with Reader(topic, "ch", lambda m: seen.append(m.body), nsqd_tcp_addresses=broker.tcp_address, **options):
        wait_for(lambda: seen == [body])


@pytest.mark.rule("SEC-1")
def test_the_chain_is_verified_by_default_and_the_error_says_what_to_set(secured: ServerHandle) -> None:
    with Writer(secured.tcp_address, tls=True, **QUICK) as writer:
        with pytest.raises(errors.CertificateError, match=r"does not verify.*ca_file") as caught:
            writer.publish("t", b"x")
        assert secured.tcp_address in str(caught.value)
    with pytest.raises(errors.CertificateError):
        Reader("t", "ch", print, nsqd_tcp_addresses=secured.tcp_address, tls=True, **QUICK).start()


@pytest.mark.rule("SEC-1")
def test_a_certificate_of_another_ca_or_host_or_time_is_refused(make_broker: MakeBroker, certs: Certificates) -> None:
    for pair, ca, said in (
        (certs.server, certs.other_ca, "does not verify"),
        (certs.wrong_host, certs.ca, "not for"),
        (certs.expired, certs.ca, "out of date"),
    ):
        broker = make_broker(tls_cert=pair.cert, tls_key=pair.key)
        writer = Writer(broker.tcp_address, tls=TLSOptions(ca_file=ca), **QUICK)
        with writer, pytest.raises(errors.CertificateError, match=said):
            writer.publish("t", b"x")
        assert broker.stats("t") == {}


@pytest.mark.rule("SEC-1")
def test_a_ca_without_key_identifiers_is_refused_by_strict_verification_with_its_remedy(
    make_broker: MakeBroker, tmp_path: Path
) -> None:
    ca, pair = without_key_identifiers(tmp_path)
    context = ssl.create_default_context(cafile=ca)
    context.verify_flags |= ssl.VERIFY_X509_STRICT  # the default of Python 3.13
    broker = make_broker(tls_cert=pair.cert, tls_key=pair.key)
    remedy = "Key Identifier.*strictly.*subjectKeyIdentifier=hash.*authorityKeyIdentifier=keyid"
    with Writer(broker.tcp_address, tls=context, **QUICK) as writer:
        with pytest.raises(errors.CertificateError, match=remedy) as caught:
            writer.publish("t", b"x")
        assert "ca_file" not in str(caught.value)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(pair.cert, pair.key)
    with stub(server) as secure, NsqdClient(f"https://{secure.address}", tls=context) as client:
        with pytest.raises(errors.HTTPConnectError, match=remedy) as failed:
            client.ping()
        assert "ca_file" not in str(failed.value)


@pytest.mark.rule("SEC-1")
def test_tls_verifies_server_hostname(make_broker: MakeBroker, certs: Certificates) -> None:
    broker = make_broker(tls_cert=certs.wrong_host.cert, tls_key=certs.wrong_host.key)
    with Writer(broker.tcp_address, tls=TLSOptions(ca_file=certs.ca, verify=False), **QUICK) as writer:
        writer.publish("t", b"x")
    context = ssl.create_default_context(cafile=certs.ca)
    context.check_hostname = False
    with Writer(broker.tcp_address, tls=context, **QUICK) as writer:
        writer.publish("t", b"x")


@pytest.mark.rule("SEC-1")
def test_client_certificates(make_broker: MakeBroker, certs: Certificates) -> None:
    broker = make_broker(
        tls_cert=certs.server.cert,
        tls_key=certs.server.key,
        tls_root_ca_file=certs.ca,
        tls_client_auth_policy="require-verify",
        tls_required=True,
    )
    mine = TLSOptions(ca_file=certs.ca, cert_file=certs.client.cert, key_file=certs.client.key)
    with Writer(broker.tcp_address, tls=mine, **QUICK) as writer:
        writer.publish("t", b"x")
    for wrong in (
        TLSOptions(ca_file=certs.ca),
        TLSOptions(ca_file=certs.ca, cert_file=certs.stranger.cert, key_file=certs.stranger.key),
    ):
        with Writer(broker.tcp_address, tls=wrong, **QUICK) as writer, pytest.raises(errors.ClientCertificateError):
            writer.publish("t", b"x", timeout=30.0)


@pytest.mark.rule("SEC-1")
@pytest.mark.parametrize(("version", "name"), [("TLSv1.2", "tls1.2"), ("TLSv1.3", "tls1.3")])
def test_tls_versions(make_broker: MakeBroker, certs: Certificates, version: Any, name: str) -> None:
    broker = make_broker(tls_cert=certs.server.cert, tls_key=certs.server.key, tls_min_version=name)
    assert TLSOptions(ca_file=certs.ca).context().minimum_version is ssl.TLSVersion.TLSv1_2
    with Writer(broker.tcp_address, tls=TLSOptions(ca_file=certs.ca), **QUICK) as writer:
        writer.publish("t", b"x")
    context = ssl.create_default_context(cafile=certs.ca)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    if version == "TLSv1.3":
        with Writer(broker.tcp_address, tls=context, **QUICK) as writer, pytest.raises(errors.NotSent) as caught:
            writer.publish("t", b"x", timeout=3.0)
        assert isinstance(caught.value.__cause__, errors.TLSError)


@pytest.mark.rule("NEG-4")
def test_tls_that_is_not_granted_is_fatal_and_nothing_is_sent(broker: ServerHandle, topic: str) -> None:
    with Writer(broker.tcp_address, tls=True, **QUICK) as writer, pytest.raises(errors.TLSNotGranted):
        writer.publish(topic, b"secret")
    with pytest.raises(errors.TLSNotGranted):
        Reader(topic, "ch", print, nsqd_tcp_addresses=broker.tcp_address, tls=True, **QUICK).start()
    assert broker.stats(topic) == {}


@pytest.mark.rule("NEG-4")
def test_compression_that_is_not_granted_is_a_logged_warning(
    make_broker: MakeBroker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker = make_broker(snappy=False)
    with Writer(broker.tcp_address, compression="snappy", **QUICK) as writer:
        writer.publish(topic, b"x")
    assert "snappy was requested, but nsqd did not grant it" in caplog.text


# -- AUTH (SEC-4)


@pytest.fixture
def auth_server() -> Iterator[AuthServer]:
    with AuthServer() as server:
        yield server


@pytest.mark.rule("SEC-4")
def test_auth_comes_before_pub_and_sub_and_its_reply_is_in_the_stats(
    make_broker: MakeBroker, auth_server: AuthServer, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    broker = make_broker(auth_http_addresses=(auth_server.address,))
    auth_server.allow("hunter2")
    seen: list[bytes] = []
    with Writer(broker.tcp_address, auth_secret="hunter2", **QUICK) as writer:
        writer.publish(topic, b"x")
        reply = writer.stats().connections[0].auth
        assert (reply.identity, reply.identity_url, reply.permission_count) == ("me", "http://me.example", 1)
        assert "hunter2" not in repr(writer.stats()) + repr(writer)
    with Reader(
        topic,
        "ch",
        lambda m: seen.append(m.body),
        nsqd_tcp_addresses=broker.tcp_address,
        auth_secret=b"hunter2",
        **QUICK,
    ) as reader:
        wait_for(lambda: seen == [b"x"])
        assert reader.stats().connections[0].auth.identity == "me"
    assert "hunter2" not in caplog.text


@pytest.mark.rule("SEC-4")
def test_every_failure_of_auth_is_typed_and_keeps_the_secret(make_broker: MakeBroker, auth_server: AuthServer) -> None:
    broker = make_broker(auth_http_addresses=(auth_server.address,))
    auth_server.allow("good", topic="^mine$")
    for secret, error in ((None, errors.AuthFirstError), ("wrong-secret", errors.NsqdError)):
        with Writer(broker.tcp_address, auth_secret=secret, **QUICK) as writer:
            with pytest.raises((error, errors.NotSent)) as caught:
                writer.publish("mine", b"x", timeout=1.0)
            assert "wrong-secret" not in str(caught.value) + repr(caught.value)
    with Writer(broker.tcp_address, auth_secret="good", **QUICK) as writer:
        writer.publish("mine", b"x")
        with pytest.raises(errors.UnauthorizedError):
            writer.publish("theirs", b"x")
        writer.publish("mine", b"x")  # the refusal closed one connection and did nothing else
    with pytest.raises(errors.UnauthorizedError):
        Reader("theirs", "ch", print, nsqd_tcp_addresses=broker.tcp_address, auth_secret="good", **QUICK).start()


REPEATED = {
    "refusal": (1, b"E_AUTH_FAILED AUTH failed for hunter2"),
    "unknown code": (1, b"E_hunter2"),
    "reply": (0, b'{"identity": "hunter2", "identity_url": "http://hunter2", "permission_count": 1}'),
    "no JSON": (0, b"{hunter2"),
    "message": (2, b"hunter2" * 10),
    "later": (0, b'{"identity": "me"}'),
}


@pytest.mark.rule("SEC-4")
@pytest.mark.parametrize("given", ["hunter2", b"hunter2"], ids=["str", "bytes"])
@pytest.mark.parametrize("repeated", list(REPEATED))
def test_a_secret_that_nsqd_repeats_is_hidden(
    repeated: str, given: str | bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    speak = steps(
        *(granting(auth_required=True), read_command, frame(*REPEATED[repeated])),
        *(read_command, frame(1, b"E_INVALID hunter2 and hunter2")),
        *(read_command, frame(0, b"hunter2"), drain),
    )
    seen: list[str] = []
    with hostile(speak) as (address, _), Writer(address, auth_secret=given, publish_timeout=0.3, **QUICK) as writer:
        for publish in (writer.publish, lambda *args: writer.publish_nowait(*args).result()):
            with pytest.raises(errors.NSQError) as caught:
                publish("t", b"x")
            seen += traceback.format_exception(caught.value)
        seen.append(repr(writer.stats()))
        before = len(seen)
        with Reader(
            "t", "ch", print, nsqd_tcp_addresses=address, auth_secret=given, on_error=lambda e: seen.append(repr(e)),
            **QUICK,
        ) as reader:  # fmt: skip
            wait_for(lambda: reader.stats().connections or "cannot" in caplog.text or len(seen) > before)
            seen.append(repr(reader.stats()))
    assert "hidden" in caplog.text + "".join(seen)
    assert "hunter2" not in caplog.text + "".join(seen)


# -- what is negotiated (NEG-1, NEG-3, SEC-5)


@pytest.mark.rule("NEG-1")
@pytest.mark.rule("NEG-3")
def test_nsqd_sees_the_requested_settings_and_stats_show_the_granted_ones(broker: ServerHandle, topic: str) -> None:
    with Reader(
        topic,
        "ch",
        print,
        nsqd_tcp_addresses=broker.tcp_address,
        client_id="me",
        hostname="here",
        user_agent="mine/1",
        sample_rate=50,
        msg_timeout=12.0,
        heartbeat_interval=5.0,
        output_buffer_timeout=0.1,
        output_buffer_size=4096,
    ) as reader:
        wait_for(lambda: reader.stats().connections)
        granted = reader.stats().connections[0].negotiated
        client = broker.stats(topic, "ch")["clients"][0]
    assert (granted.msg_timeout, granted.sample_rate, granted.max_rdy_count) == (12.0, 50, 2500)
    assert granted.raw["output_buffer_timeout"] == 100
    assert (client["client_id"], client["hostname"], client["user_agent"]) == ("me", "here", "mine/1")
    assert client["sample_rate"] == 50


@pytest.mark.rule("SEC-5")
def test_sampling_delivers_a_part_of_the_messages(broker: ServerHandle, topic: str) -> None:
    seen: list[bytes] = []
    with Writer(broker.tcp_address) as writer:
        writer.multipublish(topic, [b"x"] * 2000)
    with Reader(
        topic,
        "ch",
        lambda m: seen.append(m.body),
        nsqd_tcp_addresses=broker.tcp_address,
        sample_rate=20,
        max_in_flight=500,
    ):
        wait_for(lambda: broker.stats(topic, "ch").get("depth") == 0)
        wait_for(lambda: broker.stats(topic, "ch")["in_flight_count"] == 0)
    assert 200 < len(seen) < 700
