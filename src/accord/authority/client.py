"""An authority on another machine, as operators and CI reach it: its verbs over HTTP, with a token.

The token leaves this machine only by TLS, or to the machine itself, unless that is asked for.
"""

from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
from pydantic import SecretStr

from accord.authority.rules.errors import AuthorityError, Code
from accord.kernel import canonical
from accord.kernel.finding import Finding
from accord.web import responses
from accord.web.addresses import is_loopback

ADMIN_PATH: Final = "/admin/v1"
"""Below which an authority serves the verbs of operators."""

_SECONDS: Final = 60.0
_MOST_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class RemoteAuthority:
    """Where an authority is, and a token for it; raises AuthorityError if unusable."""

    url: str
    token: SecretStr = field(repr=False)
    plain_http: bool = False

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            host, _port = parts.hostname or "", parts.port
        except ValueError:
            raise _bad_url("the registry's address is not a URL") from None
        if parts.scheme not in ("http", "https") or not host:
            raise _bad_url("the registry's address is not a URL")
        if parts.username is not None or parts.query or parts.fragment:
            raise _bad_url("the registry's address has no password, query or fragment")
        if parts.scheme == "http" and not self._is_here and not self.plain_http:
            raise AuthorityError(
                Code.BAD_REQUEST,
                "without https, whoever is on the way can read the token",
                where=self.url,
                mend="use https, or --plain-http on a network that is yours alone",
            )
        token = self.token.get_secret_value()
        if not token.isascii() or not token.isprintable() or " " in token or not token:
            raise AuthorityError(
                Code.BAD_REQUEST,
                "this is no token of an authority",
                mend="make one there with `accord authority registry-token new`",
            )

    def ask(self, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        """Perform a verb there; raises AuthorityError, also the authority's own."""
        try:
            with responses.bounded_sync_client(
                _MOST_BYTES,
                timeout=_SECONDS,
                trust_env=not self._is_here,
                follow_redirects=False,
            ) as client:
                answer = client.post(
                    f"{self.url.rstrip('/')}{ADMIN_PATH}/{verb}",
                    content=canonical.encode(body),
                    headers={
                        "authorization": f"Bearer {self.token.get_secret_value()}",
                        "content-type": "application/json",
                    },
                )
        except httpx.HTTPError as error:
            raise AuthorityError(
                Code.UNAVAILABLE,
                f"the registry does not answer ({type(error).__name__})",
                where=self.url,
                mend="is it running, and is its certificate known here?",
            ) from None
        told = self._read(answer)
        if answer.is_success:
            return told
        raise refusal_of(told)

    @property
    def _is_here(self) -> bool:
        host = urlsplit(self.url).hostname or ""
        return host == "localhost" or is_loopback(host)

    def _read(self, answer: httpx.Response) -> dict[str, Any]:
        try:
            told = canonical.decode(answer.content, max_bytes=_MOST_BYTES)
        except canonical.CanonicalError:
            told = None
        if isinstance(told, dict) and (answer.is_success or "code" in told):
            return told
        raise AuthorityError(
            Code.UNAVAILABLE,
            f"what answers there is no authority of this version (HTTP {answer.status_code})",
            where=self.url,
            mend="correct the address, or update the authority",
        )


def refusal_of(told: dict[str, Any]) -> AuthorityError:
    """The error in an answer of an authority."""
    try:
        code = Code(told["code"])
    except ValueError:
        code = Code.BAD_REQUEST
    listed = told.get("findings", [])
    findings = [
        Finding(str(each.get("rule")), str(each.get("pointer")), str(each.get("message")))
        for each in (listed if isinstance(listed, list) else [])
        if isinstance(each, dict)
    ]
    mend = told.get("mend")
    return AuthorityError(
        code,
        str(told.get("message", "refused")),
        mend=mend if isinstance(mend, str) else None,
        findings=findings,
    )


def _bad_url(what: str) -> AuthorityError:
    # It is not shown: it may hold a password.
    return AuthorityError(Code.BAD_REQUEST, what, mend="write it as https://registry.example")
