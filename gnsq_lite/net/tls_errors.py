"""What went wrong with TLS, in words that say what to set."""

from __future__ import annotations

import ssl

from gnsq_lite.errors import ClientCertificateError, TLSError


def tls_failure(address: str, error: Exception) -> TLSError:
    """Return what went wrong; an alert during or right after the handshake is nsqd's refusal of this client."""
    said = getattr(error, "reason", None) or str(error)
    if "CERTIFICATE_REQUIRED" in said or "UNKNOWN_CA" in said or "BAD_CERTIFICATE" in said:
        why = f"nsqd refuses this client's certificate, or the lack of one ({said}); set TLSOptions(cert_file=...)"
        return ClientCertificateError(address, why)
    return TLSError(address, f"TLS failed: {error}")


def certificate_hint(error: ssl.SSLCertVerificationError, name: str) -> str:
    """Return which check failed and what to set."""
    said = error.verify_message or str(error)
    if "ostname" in said or "IP address" in said:
        return (
            f"the certificate is not for {name!r} ({said}); set TLSOptions(server_hostname=...) to the name it is for"
        )
    if "expired" in said or "not yet valid" in said:
        return f"the certificate is out of date ({said})"
    return f"the certificate does not verify ({said}); set TLSOptions(ca_file=...) to the CA that signed it"
