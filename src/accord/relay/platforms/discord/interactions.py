"""What an interaction is: verified, read, and freed of its token. Pure.

Owns the signature, the time in which it counts, and the forms of the answers. The token of an
interaction is a capability: it goes to the vault, and into no byte that is forwarded.
"""

from dataclasses import replace
from enum import IntEnum
from typing import Any, Final

import orjson
from nacl.exceptions import CryptoError
from nacl.signing import VerifyKey
from pydantic import SecretStr

from accord.kernel import canonical
from accord.relay.connector.platform import Found, Inbound, InboundKind
from accord.relay.platforms.discord.actions import TOKEN_KIND, is_token
from accord.relay.platforms.discord.normalise import PLATFORM
from accord.relay.platforms.discord.permissions import THREADS
from accord.relay.platforms.discord.snowflakes import is_snowflake
from accord.relay.wire.members import Payload, bad
from accord.relay.wire.passthrough import PassthroughForward, interaction_event

MOST_BYTES: Final = 256 * 1024
TOLERANCE: Final = 300.0
_TOKEN_MS: Final = 15 * 60 * 1000
_PRIVATE_CHANNEL: Final = 2
_HEADERS: Final = (("content-type", "application/json"),)


class Kind(IntEnum):
    """What an interaction is."""

    PING = 1
    COMMAND = 2
    COMPONENT = 3
    AUTOCOMPLETE = 4
    MODAL = 5


PONG: Final = {"type": 1}
NO_CHOICES: Final = {"type": 8, "data": {"choices": []}}
NOT_TAKEN: Final = {"type": 4, "data": {"content": "This cannot be taken.", "flags": 1 << 6}}
_DEFERRED: Final = {"type": 5}
_DEFERRED_UPDATE: Final = {"type": 6}


def verify(key: VerifyKey, signature: str, timestamp: str, body: bytes, now: float) -> bool:
    """Whether Discord signed exactly these bytes, within the last minutes."""
    if not (timestamp.isascii() and timestamp.isdecimal() and len(timestamp) <= 12):
        return False
    if len(signature) != 128 or abs(now - int(timestamp)) > TOLERANCE:
        return False
    try:
        key.verify(timestamp.encode("ascii") + body, bytes.fromhex(signature))
    except (CryptoError, ValueError):
        return False
    return True


def read(body: bytes) -> Payload:
    """The interaction that a body is.

    Raises:
        RelayError: It is not strict JSON, or no object with a type.
    """
    try:
        value = canonical.decode(body, max_bytes=MOST_BYTES)
    except canonical.CanonicalError as error:
        raise bad(f"the body is not strict JSON: {error.what}", where=error.where) from None
    if not isinstance(value, dict) or type(value.get("type")) is not int:
        raise bad("an interaction is an object with a type")
    return value


def deferred(kind: Any) -> dict[str, Any]:
    """The answer that promises one: by a new message, or by a change of the one with the button."""
    return _DEFERRED_UPDATE if kind == Kind.COMPONENT else _DEFERRED


def inbound(interaction: Payload, bot_id: str, path: str, now: float) -> Inbound:
    """An interaction as the connector takes it.

    Args:
        interaction: What came.
        bot_id: The application, which is also the bot.
        path: Where it came in.
        now: Seconds since the epoch.

    Raises:
        RelayError: It has no id, no token, no author or no chat, or nothing that it says.
    """
    token = interaction.get("token")
    if not is_snowflake(interaction.get("id")) or not is_token(token):
        raise bad("an interaction has an id and a token")
    rest = {name: value for name, value in interaction.items() if name != "token"}
    written = orjson.dumps(rest)
    forward = PassthroughForward(PLATFORM, bot_id, "POST", path, _HEADERS, written)
    event = interaction_event(forward)
    if event is None or not event.source.user_id or not is_snowflake(event.source.chat_id):
        raise bad("an interaction has a channel, a user and a command")
    source = replace(event.source, platform=PLATFORM, **_place(interaction))
    return Inbound(
        PLATFORM,
        bot_id,
        interaction["id"],
        replace(event, source=source, bot_id=bot_id),
        kind=InboundKind.PASSTHROUGH,
        forward=forward,
        addressed=True,
        found=(Found(TOKEN_KIND, SecretStr(token), int(now * 1000) + _TOKEN_MS),),
    )


def _place(interaction: Payload) -> dict[str, Any]:
    """What kind of chat it is, as messages of that chat would say."""
    if interaction.get("guild_id") is None:
        is_elsewhere = interaction.get("context") == _PRIVATE_CHANNEL
        return {"chat_type": "group" if is_elsewhere else "dm"}
    match interaction.get("channel"):
        case {"id": str(thread_id), "type": int(kind), "parent_id": str(parent_id)} if (
            kind in THREADS
        ):
            return {"chat_type": "thread", "thread_id": thread_id, "parent_chat_id": parent_id}
        case _:
            return {"chat_type": "group"}
