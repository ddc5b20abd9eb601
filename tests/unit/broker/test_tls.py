"""TLS on the broker's side: records as Go cuts them."""

from __future__ import annotations

import ssl

from gnsq_lite.broker.options import BrokerOptions
from gnsq_lite.broker.tls import TLSLayer, server_context
from tests.certs import Certificates


def test_the_first_records_are_small_and_grow_as_gos_do(certs: Certificates) -> None:
    context = server_context(BrokerOptions(tls_cert=certs.server.cert, tls_key=certs.server.key))
    assert context is not None
    server = TLSLayer(context)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = certs.client_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    while True:
        try:
            client.do_handshake()
            break
        except ssl.SSLWantReadError:
            server.feed(outgoing.read())
            server.handshake()
            incoming.write(server.outgoing())
    server.feed(outgoing.read())
    assert server.handshake()
    assert server.outgoing() == b""  # no ticket: Go's comes within the handshake
    body = bytes(200_000)
    records = list(server.write(body))
    sizes = [int.from_bytes(record[3:5], "big") for record in records]
    assert [len(record) for record in records] == [size + 5 for size in sizes]
    assert [size - 17 for size in sizes[:3]] == [1187, 2 * 1187, 3 * 1187]
    assert max(sizes) == 16384 + 17
    incoming.write(b"".join(records))
    found = b""
    while len(found) < len(body):
        found += client.read(1 << 16)
    assert found == body
