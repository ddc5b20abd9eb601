"""TLSLayer, connected to a TLS server through memory buffers."""

from __future__ import annotations

import ssl
from contextlib import suppress
from pathlib import Path

import pytest

from gnsq_lite.errors import TLSError
from gnsq_lite.net.tls import TLSLayer
from gnsq_lite.options import TLSOptions
from tests.certs import Certificates, make


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    folder: Path = tmp_path_factory.mktemp("certs")
    return make(folder)


class Server:
    """The server side of TLS."""

    def __init__(self, certs: Certificates) -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certs.server.cert, certs.server.key)
        self.came, self._goes = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.came, self._goes, server_side=True)

    def answer(self) -> bytes:
        """Continue the handshake.  Return the bytes to send to the client."""
        with suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
        return self._goes.read()

    def encrypt(self, data: bytes) -> bytes:
        self.tls.write(data)
        return self._goes.read()


def shaken(certs: Certificates) -> tuple[TLSLayer, Server]:
    """Return client and server after the handshake."""
    server = Server(certs)
    layer = TLSLayer(TLSOptions(ca_file=certs.ca), "localhost", "nsqd:4150")
    layer.shake_hands(server.answer, server.came.write)  # type: ignore[arg-type]
    assert layer.decrypt(server.answer()) == b""  # TLS 1.3 sends session tickets
    return layer, server


def test_tls_records_may_be_split_anywhere(certs: Certificates) -> None:
    layer, server = shaken(certs)
    assert layer.decrypt(server.encrypt(b"one") + server.encrypt(b"two")) == b"onetwo"
    record = server.encrypt(b"three")
    assert [layer.decrypt(record[at : at + 1]) for at in range(len(record))] == [b""] * (len(record) - 1) + [b"three"]
    assert layer.decrypt(server.encrypt(bytes(200_000))) == bytes(200_000)


def test_bytes_before_a_tls_error_are_returned_first(certs: Certificates) -> None:
    layer, server = shaken(certs)
    assert layer.decrypt(server.encrypt(b"last") + b"no record at all") == b"last"
    with pytest.raises(TLSError):
        layer.decrypt(b"nor this")


def test_close_notify_behind_data_is_seen_at_once(certs: Certificates) -> None:
    layer, server = shaken(certs)
    data = server.encrypt(b"last")
    with suppress(ssl.SSLWantReadError):
        server.tls.unwrap()
    assert layer.ended is None
    assert layer.decrypt(data + server._goes.read()) == b"last"
    assert layer.ended is not None
