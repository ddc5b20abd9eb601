"""TLS encryption and decryption without I/O.

TLSLayer uses memory buffers (``ssl.MemoryBIO``), so it works for the loop and for blocking threads.  It also decrypts
TLS bytes that arrived in the same read as the last plain frame (SEC-3).
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from contextlib import suppress

from gnsq_lite.errors import CertificateError, ClientCertificateError, ConnectionLost, NSQConnectionError, TLSError
from gnsq_lite.net.os_threads import native_lock
from gnsq_lite.options import TLSOptions, strict_verification_hint

#: Maximum bytes of one read of plain text.
_READ_SIZE = 64 * 1024

#: Held in each step of a handshake, and while the process forks.  A handshake acquires global locks of OpenSSL.  If a
#: thread held such a lock during the fork, no handshake of the child could end.
_handshake_lock = native_lock()
os.register_at_fork(
    before=_handshake_lock.acquire, after_in_parent=_handshake_lock.release, after_in_child=_handshake_lock.release
)


class TLSLayer:
    """Client side of TLS on one connection.

    *early* is the bytes that were read after the last plain frame.  Raises TLSError for a host name that TLS cannot
    verify, and OptionError for a file that cannot be read.
    """

    def __init__(self, tls: TLSOptions | ssl.SSLContext, host: str, address: str, early: bytes = b"") -> None:
        self._address, self._name, context = address, host, tls
        #: Why no more bytes can be decrypted: nsqd has sent close_notify or bytes that are no TLS; otherwise None.
        self.ended: NSQConnectionError | None = None
        if isinstance(tls, TLSOptions):
            with _handshake_lock:
                context, self._name = tls.context(), tls.server_hostname or host
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._in.write(early)
        try:
            self._object = context.wrap_bio(self._in, self._out, server_hostname=self._name)  # type: ignore[union-attr]
        except (ssl.SSLError, ValueError) as error:
            raise _failure(address, error) from error

    def shake_hands(self, read: Callable[[], bytes], send: Callable[[bytes], None]) -> None:
        """Do the handshake with *read*, which waits for bytes, and *send*.  Raises TLSError, CertificateError."""
        try:
            while not self._is_done(send):
                self._in.write(read())
        except ssl.SSLCertVerificationError as error:
            raise CertificateError(self._address, _certificate_hint(error, self._name)) from error
        except ConnectionLost as error:
            why = (
                f"nsqd closed the connection in the TLS handshake ({error.why}); does it ask for a client certificate?"
            )
            raise TLSError(self._address, why) from error
        except (ssl.SSLError, ValueError) as error:
            raise _failure(self._address, error) from error

    def _is_done(self, send: Callable[[bytes], None]) -> bool:
        try:
            with _handshake_lock:
                self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        finally:  # after an error, send the TLS alert
            send(self._out.read())
        return True

    def decrypt(self, data: bytes) -> bytes:
        """Decrypt the complete TLS records.  Without plain text, raises ConnectionLost at close_notify, or TLSError."""
        chunks = []
        self._in.write(data)
        try:
            while chunk := self._object.read(_READ_SIZE):
                chunks.append(chunk)
                if not (self._in.pending or self._object.pending()):
                    break  # nothing is left; this check is faster than catching SSLWantReadError
            else:
                self.ended = ConnectionLost(self._address, "connection closed by nsqd")  # b"" is close_notify
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.ended = ConnectionLost(self._address, "connection closed by nsqd")
        except ssl.SSLError as error:
            self.ended = _failure(self._address, error)
            self.ended.__cause__ = error
        if self.ended is not None and not chunks:
            raise self.ended
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def encrypt(self, data: bytes) -> bytes:
        """Encrypt *data*, and return all TLS records to send.  Raises TLSError."""
        try:
            self._object.write(data)
        except ssl.SSLError as error:
            raise TLSError(self._address, f"TLS failed: {error}") from error
        return self._out.read()

    def take_outgoing(self) -> bytes:
        """Return the TLS records that OpenSSL sends by itself, often b""."""
        return self._out.read() if self._out.pending else b""

    def close_notify(self) -> bytes:
        """Return the close_notify record, the last TLS record to send."""
        with suppress(ssl.SSLError, OSError):
            self._object.unwrap()
        return self._out.read()


def _failure(address: str, error: Exception) -> TLSError:
    """Convert *error* to TLSError, or to ClientCertificateError if nsqd refused this client's certificate."""
    said = getattr(error, "reason", None) or str(error)
    if "CERTIFICATE_REQUIRED" in said or "UNKNOWN_CA" in said or "BAD_CERTIFICATE" in said:
        why = f"nsqd requires a client certificate, or refuses yours ({said}); set TLSOptions(cert_file=...)"
        return ClientCertificateError(address, why)
    return TLSError(address, f"TLS failed: {error}")


def _certificate_hint(error: ssl.SSLCertVerificationError, name: str) -> str:
    """Describe the failed check, and name the option to set, if any."""
    said = error.verify_message or str(error)
    if "ostname" in said or "IP address" in said:
        return f"the certificate is not for {name!r} ({said}); set TLSOptions(server_hostname=...) to a name in it"
    if "expired" in said or "not yet valid" in said:
        return f"the certificate is out of date ({said})"
    if hint := strict_verification_hint(said):
        return f"the certificate does not verify ({said}){hint}"
    return f"the certificate does not verify ({said}); set TLSOptions(ca_file=...) to the CA that signed it"
