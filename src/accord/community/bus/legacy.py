"""Calls of programs that sign nothing: off unless the operator asks for it.

Existing implementations send one flat object, `{"capability", "version", "params", "input"}`, and
no headers of the protocol. Such a call is taken as a plain member's whom nobody knows: under a key
that is made at the start and forgotten at the end, so that it is never this node's own word.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

from accord.community.bus.rates import is_from_here
from accord.community.envelope import calls
from accord.community.envelope.calls import Request
from accord.community.errors import Code, CommunityError
from accord.kernel.clock import Clock, format_time
from accord.kernel.signing import SigningKey
from accord.kernel.ulid import UlidSource

_PREFIX: Final = b"x-hearthnet-"
_OF_BROWSERS: Final = ("origin", "sec-fetch-site")
_MEMBERS: Final = frozenset({"capability", "version", "community", "params", "input", "stream"})


class Legacy(Enum):
    """From where unsigned calls are taken."""

    OFF = "off"
    LOOPBACK = "loopback"
    ANYWHERE = "anywhere"


def is_flat(raw: list[tuple[bytes, bytes]]) -> bool:
    """Whether a request has none of the protocol's headers."""
    return not any(name.lower().startswith(_PREFIX) for name, _ in raw)


class Stranger:
    """Who all unsigned calls come from."""

    def __init__(self, legacy: Legacy, clock: Clock) -> None:
        self._legacy = legacy
        self._clock = clock
        self._key = SigningKey.generate()
        self._ids = UlidSource(clock)

    def check(self, host: str, headers: Mapping[str, str]) -> None:
        """Check that unsigned calls are taken from whoever asks, and that it is no browser.

        Any page that somebody looks at can have the browser send such a call, and the browser then
        says for which page.

        Raises:
            CommunityError: They are not: `invalid_signature`.
        """
        is_page = any(name in headers for name in _OF_BROWSERS)
        is_near = self._legacy is Legacy.LOOPBACK and is_from_here(host, headers)
        if not is_page and (is_near or self._legacy is Legacy.ANYWHERE):
            return
        raise CommunityError(Code.INVALID_SIGNATURE, "the request is not signed")

    def read(self, body: Any, communities: Mapping[str, Any]) -> tuple[Request, dict[str, Any]]:
        """Read a flat call, in the community that it names or in the only one.

        Raises:
            CommunityError: It has another form: `bad_request`.
        """
        if not isinstance(body, dict) or not body.keys() <= _MEMBERS:
            raise CommunityError(
                Code.BAD_REQUEST, f"expected an object of {', '.join(sorted(_MEMBERS))}"
            )
        community = body.get("community") or next(iter(communities), None)
        named = (body.get("capability"), body.get("version", "1.0"), community)
        if not all(isinstance(each, str) for each in named):
            raise CommunityError(Code.BAD_REQUEST, "capability, version and community are texts")
        capability, version, community = (str(each) for each in named)
        said = {"params": body.get("params", {}), "input": body.get("input", {})}
        request = calls.sign_request(
            self._key,
            capability=capability,
            version=version,
            request_id=self._ids.new(),
            community=community,
            timestamp=format_time(self._clock.now()),
            body=said,
        )
        return request, said
