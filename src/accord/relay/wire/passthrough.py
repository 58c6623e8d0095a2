"""A platform's request that the connector has verified and answered, on its way to a gateway.

Owns the wire form and what a Discord interaction says. It verifies nothing: that was done at the
connector's edge, where also every capability was taken out of the body.
"""

import base64
import binascii
from dataclasses import dataclass
from typing import Any, Final, Self

from accord.kernel import canonical
from accord.relay.errors import RelayError
from accord.relay.wire import members
from accord.relay.wire.event import MessageEvent
from accord.relay.wire.source import GENERIC_PLATFORM, SessionSource

_OPTION_DEPTH: Final = 3  # Discord nests a command's options no deeper: group, command, option


@dataclass(frozen=True, slots=True)
class PassthroughForward:
    """An HTTP request as it was forwarded, its body as exact bytes."""

    platform: str = ""
    bot_id: str = ""
    method: str = ""
    path: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""

    @classmethod
    def from_dict(cls, value: Any) -> Self:
        """Read the wire form; missing members are empty.

        Raises:
            RelayError: A member has the wrong type, or the body is not base64.
        """
        given = members.payload(value, "a forward")
        try:
            body = base64.b64decode(members.text(given, "bodyB64", ""), validate=True)
        except (binascii.Error, ValueError):  # the latter where it is not ASCII
            raise members.bad("expected base64", where="/bodyB64") from None
        return cls(
            members.text(given, "platform", ""),
            members.text(given, "botId", ""),
            members.text(given, "method", ""),
            members.text(given, "path", ""),
            _headers(given.get("headers")),
            body,
        )

    def to_dict(self) -> dict[str, Any]:
        """The wire form."""
        return {
            "platform": self.platform,
            "botId": self.bot_id,
            "method": self.method,
            "path": self.path,
            "headers": [list(header) for header in self.headers],
            "bodyB64": base64.b64encode(self.body).decode("ascii"),
        }


def interaction_event(forward: PassthroughForward) -> MessageEvent | None:
    """The message that a Discord interaction amounts to; None for anything else.

    Its platform is `relay`, as with existing gateways, so that its session has the same key there.
    """
    if forward.platform != "discord":
        return None
    try:
        given = members.payload(canonical.decode(forward.body), "an interaction")
        data = members.member(given, "data")
        text = members.optional_text(data, "name") or members.text(data, "custom_id", "")
        scope = members.optional_text(given, "guild_id")
        member = members.member(given, "member")
        user = members.member(member, "user") or members.member(given, "user")
        source = SessionSource(
            platform=GENERIC_PLATFORM,
            chat_id=members.text(given, "channel_id", ""),
            chat_type="channel" if scope else "dm",
            user_id=members.optional_text(user, "id"),
            user_name=members.optional_text(user, "username"),
            scope_id=scope,
            message_id=members.optional_text(given, "id"),
        )
    except (canonical.CanonicalError, RelayError):
        return None
    if not text:
        return None
    spoken = " ".join([text, *_options(data.get("options"), _OPTION_DEPTH)])
    return MessageEvent(spoken, source, message_id=source.message_id, bot_id=forward.bot_id or None)


def _options(value: Any, depth: int) -> list[str]:
    """What the user filled in, in order: names of sub-commands and values of options."""
    words: list[str] = []
    for option in value if isinstance(value, list) and depth else ():
        if not isinstance(option, dict):
            continue
        chosen = option.get("value")
        if isinstance(chosen, (str, int, float)):
            words.append(str(chosen))
        elif isinstance(option.get("name"), str):
            words += [option["name"], *_options(option.get("options"), depth - 1)]
    return words


def _headers(value: Any) -> tuple[tuple[str, str], ...]:
    headers: list[tuple[str, str]] = []
    for pair in value if isinstance(value, list) else () if value is None else (value,):
        match pair:
            case [str(name), str(content)]:
                headers.append((name, content))
            case _:
                raise members.bad("expected pairs of name and value", where="/headers")
    return tuple(headers)
