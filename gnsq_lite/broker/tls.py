"""Builds the broker's TLS context from nsqd's TLS flags."""

from __future__ import annotations

import _ssl
import base64
import contextlib
import tempfile
from typing import Any

from gevent import ssl

from gnsq_lite.broker.options import BrokerOptions

_VERSIONS = {
    "tls1.0": ssl.TLSVersion.TLSv1,
    "tls1.1": ssl.TLSVersion.TLSv1_1,
    "tls1.2": ssl.TLSVersion.TLSv1_2,
    "tls1.3": ssl.TLSVersion.TLSv1_3,
}
_HANDSHAKE, _CERTIFICATE = 22, b"\x0b"
#: X509_AUX (DER) to append to a certificate: OpenSSL then trusts it for clientAuth, regardless of its key usage.
_FOR_CLIENTS = bytes.fromhex("300c300a06082b06010505070302")
_NO_CHECK_TIME = 0x200000  # X509_V_FLAG_NO_CHECK_TIME
#: SSL_OP_NO_TX_CERTIFICATE_COMPRESSION and SSL_OP_NO_RX_CERTIFICATE_COMPRESSION of OpenSSL 3.2.
_NO_COMPRESSED_CERTIFICATES = 3 << 32


def server_context(options: BrokerOptions) -> ssl.SSLContext | None:
    """Build the TLS context, or return None if there is no ``tls_cert``.

    The policy "require-verify" trusts the CAs of ``tls_root_ca_file`` if given, otherwise the system's CAs.  The policy
    "require" accepts any client certificate.
    """
    if not options.tls_cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(options.tls_cert, options.tls_key)
    context.set_ciphers("@SECLEVEL=0:ECDH+AESGCM:ECDH+CHACHA20:ECDH+AES:!aNULL")  # Go's ciphers, and short keys
    context.minimum_version = _VERSIONS[options.tls_min_version]
    if ssl.OPENSSL_VERSION_INFO >= (3, 2):
        context.options |= _NO_COMPRESSED_CERTIFICATES  # _first_certificate() cannot read these
    context.num_tickets = 0  # as in Go, no session tickets come between the handshake and nsqd's OK
    if options.tls_client_auth_policy:
        context.verify_mode = ssl.CERT_REQUIRED
    if options.tls_client_auth_policy == "require":
        _trust_any_certificate(context)
    elif options.tls_root_ca_file:
        context.load_verify_locations(options.tls_root_ca_file)
    elif options.tls_client_auth_policy:
        context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    return context


def _trust_any_certificate(context: ssl.SSLContext) -> None:
    """Accept any client certificate, regardless of its issuer, purpose and dates.

    Python's ssl always verifies a required certificate.  So a callback adds each received certificate to the CAs.
    """

    def arrived(conn: object, direction: str, version: int, content_type: int, kind: int, message: bytes) -> None:
        if direction == "read" and content_type == _HANDSHAKE and message[:1] == _CERTIFICATE:
            certificate = _first_certificate(message, has_context=version == ssl.TLSVersion.TLSv1_3)
            with tempfile.NamedTemporaryFile() as file, contextlib.suppress(ssl.SSLError):  # the handshake then fails
                text = base64.encodebytes(certificate + _FOR_CLIENTS)
                file.write(b"-----BEGIN TRUSTED CERTIFICATE-----\n%s-----END TRUSTED CERTIFICATE-----\n" % text)
                file.flush()
                context.load_verify_locations(file.name)  # only this call accepts an X509_AUX

    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    # In a monkey-patched process the property of ssl.SSLContext is gevent's, and has no effect.  Set the C attribute.
    _ssl._SSLContext._msg_callback.__set__(context, arrived)  # type: ignore[attr-defined]


def _first_certificate(message: bytes, *, has_context: bool) -> bytes:
    """Return the peer's own certificate (DER) from a Certificate message.

    If *has_context* is true (TLS 1.3), a context precedes the list of certificates.
    """
    at = 4 + 3 + (1 + message[4] if has_context else 0)
    return message[at + 3 : at + 3 + int.from_bytes(message[at : at + 3], "big")]


def info_of(sock: ssl.SSLSocket) -> dict[str, Any]:
    """Return the TLS fields of a connection for /stats, and the common name of the peer's certificate."""
    cipher = sock.cipher()
    name = cipher[0] if cipher else ""
    certificate: dict[str, Any] = dict(sock.getpeercert() or {})
    names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    return {
        "tls_cipher_suite": name if name.startswith("TLS_") else "TLS_" + name.replace("-", "_"),
        "tls_version": (sock.version() or "").replace("TLSv", "TLS"),
        "common_name": names[0] if names else "",
    }
