"""TLS on the broker's side: the context nsqd's flags describe, and a layer that needs no socket."""

from __future__ import annotations

import ssl
from typing import Any

from gnsq_lite.broker.options import BrokerOptions

_VERSIONS = {
    "tls1.0": ssl.TLSVersion.TLSv1,
    "tls1.1": ssl.TLSVersion.TLSv1_1,
    "tls1.2": ssl.TLSVersion.TLSv1_2,
    "tls1.3": ssl.TLSVersion.TLSv1_3,
}
_READ = 1 << 16


def server_context(options: BrokerOptions) -> ssl.SSLContext | None:
    """Return the context of ``--tls-cert``, ``--tls-key`` and the client-certificate policy, or None without them.

    Policy "require" wants a certificate and, unlike nsqd's, verifies it: Python's ssl cannot ask for one and not do so.
    The CAs are those of ``tls_root_ca_file``, or the system's.
    """
    if not options.tls_cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(options.tls_cert, options.tls_key)
    context.minimum_version = _VERSIONS[options.tls_min_version]
    if options.tls_root_ca_file:
        context.load_verify_locations(options.tls_root_ca_file)
    elif options.tls_client_auth_policy:
        context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    if options.tls_client_auth_policy:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class TLSLayer:
    """A server's side of TLS between two memory buffers."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.established = False

    def feed(self, data: bytes) -> None:
        """Take bytes from the network."""
        self._incoming.write(data)

    def handshake(self) -> bool:
        """Go on with the handshake; return whether it is done.  Raises ssl.SSLError."""
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        self.established = True
        return True

    def read(self) -> bytes | None:
        """Return decrypted bytes, b"" at the peer's end of TLS, or None when more input is needed.  Raises SSLError."""
        try:
            return self._object.read(_READ)
        except ssl.SSLWantReadError:
            return None
        except ssl.SSLZeroReturnError:
            return b""

    def write(self, data: bytes) -> None:
        """Encrypt *data*; :meth:`outgoing` has the result."""
        view = memoryview(data)
        while view:
            view = view[self._object.write(view) :]

    def outgoing(self) -> bytes:
        """Return the bytes to send."""
        return self._outgoing.read()

    def info(self) -> dict[str, Any]:
        """Return what /stats shows of the connection, and the peer's common name."""
        cipher = self._object.cipher()
        version = self._object.version() or ""
        name = cipher[0] if cipher else ""
        certificate: dict[str, Any] = dict(self._object.getpeercert() or {})
        names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
        return {
            "tls_cipher_suite": name if name.startswith("TLS_") else "TLS_" + name.replace("-", "_"),
            "tls_version": version.replace("TLSv", "TLS"),
            "common_name": names[0] if names else "",
        }
