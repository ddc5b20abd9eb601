"""Certificates for TLS tests, made when the tests run and good for a day."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Pair:
    """Paths of a certificate and its key, both PEM."""

    cert: str
    key: str


@dataclass(frozen=True)
class Certificates:
    """What TLS tests need; every path is a PEM file.

    ``server`` is good for localhost, 127.0.0.1 and ::1; ``wrong_host`` for other.example only; ``expired`` ended
    yesterday.  All three and ``client`` are signed by ``ca``; ``stranger`` (a client's) by ``other_ca``.
    """

    ca: str
    other_ca: str
    server: Pair
    wrong_host: Pair
    expired: Pair
    client: Pair
    stranger: Pair

    def client_context(self, *, client: Pair | None = None) -> ssl.SSLContext:
        """Return a context that trusts ``ca`` and checks host names, with a client certificate where one is given."""
        context = ssl.create_default_context(cafile=self.ca)
        if client is not None:
            context.load_cert_chain(client.cert, client.key)
        return context


class _Authority:
    def __init__(self, folder: Path, name: str, *, key_identifiers: bool = True) -> None:
        self._key_identifiers = key_identifiers
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.datetime.now(datetime.timezone.utc)
        usage = x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        builder = (
            x509.CertificateBuilder()
            .subject_name(self._name)
            .issuer_name(self._name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + _DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
        )
        if key_identifiers:
            identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
            builder = builder.add_extension(identifier, critical=False)
        cert = builder.sign(self._key, hashes.SHA256())
        self.path = str(folder / f"{name}.pem")
        Path(self.path).write_bytes(cert.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *, hosts: tuple[str, ...] = (), client: bool = False, expired: bool = False) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.timezone.utc)
        begin, end = (now - 3 * _DAY, now - _DAY) if expired else (now - _DAY, now + _DAY)
        purpose = ExtendedKeyUsageOID.CLIENT_AUTH if client else ExtendedKeyUsageOID.SERVER_AUTH
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        )
        if self._key_identifiers:
            builder = builder.add_extension(issuer, critical=False)
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName([_name(host) for host in hosts]), False)
        cert = builder.sign(self._key, hashes.SHA256())
        paths = Pair(str(self._folder / f"{name}.pem"), str(self._folder / f"{name}.key"))
        Path(paths.cert).write_bytes(cert.public_bytes(serialization.Encoding.PEM))
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        Path(paths.key).write_bytes(secret)
        return paths


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def without_key_identifiers(folder: Path) -> tuple[str, Pair]:
    """Return a CA and a server certificate that Python 3.13 refuses and Python 3.12 accepts."""
    old = _Authority(folder, "old-ca", key_identifiers=False)
    return old.path, old.issue("old-server", hosts=("localhost", "127.0.0.1"))


def make(folder: Path) -> Certificates:
    """Make all certificates below *folder*."""
    ours, other = _Authority(folder, "ca"), _Authority(folder, "other-ca")
    here = ("localhost", "127.0.0.1", "::1")
    return Certificates(
        ca=ours.path,
        other_ca=other.path,
        server=ours.issue("server", hosts=here),
        wrong_host=ours.issue("wrong-host", hosts=("other.example",)),
        expired=ours.issue("expired", hosts=here, expired=True),
        client=ours.issue("client", client=True),
        stranger=other.issue("stranger", client=True),
    )


def server_context(certs: Certificates, pair: Any = None, *, client_ca: str | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    pair = pair or certs.server
    context.load_cert_chain(pair.cert, pair.key)
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client_ca)
    return context
