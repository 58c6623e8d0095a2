"""A service on another machine, as an operator reaches it: its verbs over HTTP, with a token.

The token leaves this machine only by TLS, or to the machine itself, unless that is asked for.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
from pydantic import SecretStr

from accord.kernel import canonical
from accord.kernel.errors import AccordError
from accord.web import outgoing
from accord.web.incoming import is_loopback

_SECONDS: Final = 60.0
_MOST_BYTES: Final = 64 << 20
# Nothing of a request has left when one of these is raised.
_UNSENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)

BAD_REQUEST: Final = "bad_request"
UNAVAILABLE: Final = "unavailable"


@dataclass(frozen=True, slots=True)
class RemoteKind:
    """What is at the other end, and how its errors are made and read.

    `error` makes one of a code (`BAD_REQUEST` or `UNAVAILABLE`), a clause, a place and a mend.
    """

    name: str
    path: str
    code_member: str
    make_token: str
    error: Callable[[str, str, str | None, str | None], AccordError]
    read_error: Callable[[dict[str, Any]], AccordError]


@dataclass(frozen=True, slots=True)
class Remote:
    """Where a service is, and a token for it; raises its kind's error if unusable."""

    kind: RemoteKind
    url: str
    token: SecretStr = field(repr=False)
    plain_http: bool = False

    def __post_init__(self) -> None:
        kind, mend = self.kind, f"write it as https://{self.kind.name}.example"
        # A bad address is not shown: it may hold a password.
        no_url = f"the {kind.name}'s address is not a URL"
        try:
            parts = urlsplit(self.url)
            host, _port = parts.hostname or "", parts.port
        except ValueError:
            raise kind.error(BAD_REQUEST, no_url, None, mend) from None
        if parts.scheme not in ("http", "https") or not host:
            raise kind.error(BAD_REQUEST, no_url, None, mend)
        if parts.username is not None or parts.query or parts.fragment:
            what = f"the {kind.name}'s address has no password, query or fragment"
            raise kind.error(BAD_REQUEST, what, None, mend)
        if parts.scheme == "http" and not self._is_here and not self.plain_http:
            raise kind.error(
                BAD_REQUEST,
                "without https, whoever is on the way can read the token",
                self.url,
                "use https, or --plain-http on a network that is yours alone",
            )
        token = self.token.get_secret_value()
        if not token.isascii() or not token.isprintable() or " " in token or not token:
            what = f"this is no token for the {kind.name}"
            raise kind.error(BAD_REQUEST, what, None, f"make one there with `{kind.make_token}`")

    def ask(self, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        """Perform a verb there; raises the kind's error, also the service's own."""
        try:
            with outgoing.bounded_sync_client(
                _MOST_BYTES, timeout=_SECONDS, trust_env=not self._is_here, follow_redirects=False
            ) as client:
                answer = client.post(
                    f"{self.url.rstrip('/')}{self.kind.path}/{verb}",
                    content=canonical.encode(body),
                    headers={
                        "authorization": f"Bearer {self.token.get_secret_value()}",
                        "content-type": "application/json",
                    },
                )
        except _UNSENT as error:
            raise self._silent(error, "is it running, and is its certificate known here?") from None
        except httpx.HTTPError as error:
            mend = "it may have been done: look before you repeat it"
            raise self._silent(error, mend) from None
        told = self._read(answer)
        if answer.is_success:
            return told
        raise self.kind.read_error(told)

    @property
    def _is_here(self) -> bool:
        """Whether no proxy of the environment can lie between."""
        host = urlsplit(self.url).hostname or ""
        return host == "localhost" or is_loopback(host)

    def _read(self, answer: httpx.Response) -> dict[str, Any]:
        kind = self.kind
        if answer.is_redirect:
            raise kind.error(
                UNAVAILABLE,
                f"the {kind.name}'s address redirects elsewhere, and a token does not follow",
                self.url,
                "give the address that it redirects to, if you trust it",
            )
        try:
            told = canonical.decode(answer.content, max_bytes=_MOST_BYTES)
        except canonical.CanonicalError:
            told = None
        if isinstance(told, dict) and (answer.is_success or kind.code_member in told):
            return told
        raise kind.error(
            UNAVAILABLE,
            f"what answers there is no {kind.name} of this version (HTTP {answer.status_code})",
            self.url,
            f"correct the address, or update the {kind.name}",
        )

    def _silent(self, error: httpx.HTTPError, mend: str) -> AccordError:
        what = f"the {self.kind.name} does not answer ({type(error).__name__})"
        return self.kind.error(UNAVAILABLE, what, self.url, mend)
