"""AUTH: asking an auth server and holding clients to its answer (internal/auth/authorizations.go @v1.3.0)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gnsq_lite.broker.session import Session


@dataclass(frozen=True)
class Grant:
    """What an auth server allowed one client."""

    identity: str
    identity_url: str
    authorizations: tuple[Any, ...]
    expires_at: float

    @property
    def permission_count(self) -> int:
        return len(self.authorizations)


class Authorizer:
    def ask(self, session: Session) -> Grant:
        raise NotImplementedError

    def check(self, session: Session, verb: str, topic: str, channel: str) -> Grant:
        raise NotImplementedError
