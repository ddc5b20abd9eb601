"""Replaces the library's option names in error texts by the program's flags."""

from __future__ import annotations

import re

from gnsq_lite.errors import OptionError

#: Option name in an error of the library -> flag of the program.
_FLAGS = {
    "dialect='youzan'": "--dialect youzan",
    "auth_secret": "--auth-secret (or NSQ_AUTH_SECRET)",
    "nsqd_tcp_addresses": "--nsqd-tcp-address",
    "lookupd_http_addresses": "--lookupd-http-address",
    "ca_file": "--tls-root-ca-file",
    "cert_file": "--tls-cert",
    "key_file": "--tls-key",
    "http_timeout": "--http-timeout",
    "publish_timeout": "--timeout",
}
_OPTION_NAMES = re.compile(rf"(?<![\w-])({'|'.join(_FLAGS)})(?![\w-])")


def in_flags(error: Exception | str) -> str:
    """Return the text of *error* with flags in place of option names."""
    if isinstance(error, OptionError):
        flag = _FLAGS.get(error.name, f"--{error.name.replace('_', '-')}")
        return f"{flag} {error.value!r}: {in_flags(error.why)}"
    return _OPTION_NAMES.sub(lambda found: _FLAGS[found[0]], str(error))
