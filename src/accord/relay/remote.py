"""A connector on another machine, as an operator reaches it: its verbs over HTTP, with a token.

The token leaves this machine only by TLS, or to the machine itself, unless that is asked for.
"""

from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

import httpx
from pydantic import SecretStr

from accord.kernel import canonical
from accord.relay.errors import Code, RelayError
from accord.web import responses
from accord.web.addresses import is_loopback

OPERATOR_ROUTE: Final = "/manage/operator"
"""Below which a connector serves the verbs of operators."""

JsonObject: TypeAlias = dict[str, Any]

_SECONDS: Final = 60.0
_MOST_BYTES: Final = 64 << 20
_CODES: Final = {code.value: code for code in Code}
# Nothing of a request has left when one of these is raised.
_UNSENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


@dataclass(frozen=True, slots=True)
class RemoteConnector:
    """Where a connector is, and by what it knows an operator; raises RelayError if unusable."""

    url: str
    token: SecretStr = field(repr=False)
    plain_http: bool = False

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            host, _port = parts.hostname or "", parts.port
        except ValueError:
            raise _bad_url("the connector's address is not a URL") from None
        if parts.scheme not in ("http", "https") or not host:
            raise _bad_url("the connector's address is not a URL")
        if parts.username is not None or parts.query or parts.fragment:
            raise _bad_url("the connector's address has no password, query or fragment")
        is_private = parts.scheme == "https" or host == "localhost" or is_loopback(host)
        if not is_private and not self.plain_http:
            raise RelayError(
                Code.BAD_REQUEST,
                "without https, whoever is on the way can read the operator's token",
                where=self.url,
                mend="use https, or --plain-http on a network that is yours alone",
            )
        token = self.token.get_secret_value()
        if not token.isascii() or not token.isprintable() or " " in token or not token:
            raise RelayError(
                Code.BAD_REQUEST,
                "this is no operator's token",
                mend="make one at the connector with `accord relay operator-token new`",
            )

    def ask(self, verb: str, body: JsonObject) -> JsonObject:
        """Perform a verb there; raises RelayError, also the connector's own."""
        try:
            with responses.bounded_sync_client(
                _MOST_BYTES, timeout=_SECONDS, trust_env=self._is_elsewhere, follow_redirects=False
            ) as client:
                answer = client.post(
                    f"{self.url.rstrip('/')}{OPERATOR_ROUTE}/{verb}",
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
        raise RelayError(
            _CODES.get(str(told.get("error")), Code.BAD_REQUEST),
            str(told.get("what") or told.get("message") or "refused"),
            where=_text(told.get("where")),
            mend=_text(told.get("mend")),
        )

    @property
    def _is_elsewhere(self) -> bool:
        """Whether a proxy of the environment may lie between."""
        host = urlsplit(self.url).hostname or ""
        return host != "localhost" and not is_loopback(host)

    def _read(self, answer: httpx.Response) -> JsonObject:
        if answer.is_redirect:
            raise RelayError(
                Code.UNAVAILABLE,
                "the connector's address sends elsewhere, and a token does not follow",
                where=self.url,
                mend="give the address that it sends to, if you trust it",
            )
        try:
            told = canonical.decode(answer.content, max_bytes=_MOST_BYTES)
        except canonical.CanonicalError:
            told = None
        if not isinstance(told, dict) or not (answer.is_success or "error" in told):
            raise RelayError(
                Code.UNAVAILABLE,
                f"what answers there is no connector of this version (HTTP {answer.status_code})",
                where=self.url,
                mend="correct the address, or update the connector",
            )
        return told

    def _silent(self, error: httpx.HTTPError, mend: str) -> RelayError:
        what = f"the connector does not answer ({type(error).__name__})"
        return RelayError(Code.UNAVAILABLE, what, where=self.url, mend=mend)


def _bad_url(what: str) -> RelayError:
    # It is not shown: it may hold a password.
    return RelayError(Code.BAD_REQUEST, what, mend="write it as https://connector.example")


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
