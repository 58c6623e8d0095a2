"""The form of a message: what the service reads out of it, and what it finds wrong with it.

Owns lengths, nonces, allowed mentions and references. It posts nothing.
"""

from typing import Any

from accord.testing.discord.channels import Channel
from accord.testing.discord.messages import Allowed, Draft, Message
from accord.testing.discord.people import User
from accord.testing.discord.permissions import Permission, channel_permissions
from accord.testing.discord.rest.calls import Call, snowflake, typed
from accord.testing.discord.rest.refusals import Refused, bad_form
from accord.testing.discord.world import Json

MAX_CONTENT = 2000
_MAX_NONCE = 25
_MAX_EMBEDS = 10
_PARSED = ("roles", "users", "everyone")
_KEPT_FLAGS = 1 << 2 | 1 << 6 | 1 << 12
"""What an app may set: no embeds, for one user only, no notification."""


def read_content(call: Call) -> str:
    """The text of a message, of which there may be none."""
    content: str = call.member("content", str, "")
    if len(content) > MAX_CONTENT:
        raise bad_form(
            "content", "BASE_TYPE_MAX_LENGTH", f"Must be {MAX_CONTENT} or fewer in length."
        )
    return content


def read_draft(call: Call, channel: Channel, author: User, **details: Any) -> Draft:
    """A message that is to be created."""
    content = read_content(call)
    embeds = read_objects(call, "embeds")
    if not content.strip() and not embeds:
        raise Refused(400, 50006, "Cannot send an empty message")
    return Draft(
        author,
        content,
        reply_to=_reply(call, channel),
        allowed=read_allowed(call),
        embeds=tuple(embeds),
        components=tuple(read_objects(call, "components")),
        nonce=_nonce(call),
        flags=call.member("flags", int, 0) & _KEPT_FLAGS,
        tts=call.member("tts", bool, default=False),
        is_loud=Permission.MENTION_EVERYONE in channel_permissions(channel, author.id),
        **details,
    )


def read_objects(call: Call, name: str) -> list[Json]:
    """A list of objects, kept as they are."""
    found = call.member(name, list, [])
    if len(found) > _MAX_EMBEDS:
        raise bad_form(name, "BASE_TYPE_MAX_LENGTH", f"Must be {_MAX_EMBEDS} or fewer in length.")
    return [typed(each, f"{name}.{at}", dict, {}) for at, each in enumerate(found)]


def read_allowed(call: Call) -> Allowed:
    """Whom the message may notify: everybody it names, where nothing is said."""
    asked: Json | None = call.member("allowed_mentions", dict)
    if asked is None:
        return Allowed()
    where = "allowed_mentions"
    parse = typed(asked.get("parse"), f"{where}.parse", list, [])
    for each in parse:
        if each not in _PARSED:
            choices = ", ".join(repr(one) for one in _PARSED)
            raise bad_form(
                f"{where}.parse", "BASE_TYPE_CHOICES", f"Value must be one of ({choices})."
            )
    named: dict[str, frozenset[str]] = {}
    for name in ("users", "roles"):
        found = typed(asked.get(name), f"{where}.{name}", list, [])
        if found and name in parse:
            raise bad_form(
                where,
                "MESSAGE_ALLOWED_MENTIONS_PARSE_EXCLUSIVE",
                f'parse:["{name}"] and {name}: [ids...] are mutually exclusive.',
            )
        if len(found) > 100:
            raise bad_form(
                f"{where}.{name}", "BASE_TYPE_MAX_LENGTH", "Must be 100 or fewer in length."
            )
        named[name] = frozenset(snowflake(each, f"{where}.{name}") for each in found)
    return Allowed(
        everyone="everyone" in parse,
        all_users="users" in parse,
        all_roles="roles" in parse,
        users=named["users"],
        roles=named["roles"],
        replied_user=typed(asked.get("replied_user"), f"{where}.replied_user", bool, default=False),
    )


def _nonce(call: Call) -> str | int | None:
    nonce = call.form().get("nonce")
    if nonce is None or (isinstance(nonce, int) and not isinstance(nonce, bool)):
        return nonce
    text: str = typed(nonce, "nonce", str)
    if len(text) > _MAX_NONCE:
        raise bad_form("nonce", "BASE_TYPE_MAX_LENGTH", f"Must be {_MAX_NONCE} or fewer in length.")
    return text


def _reply(call: Call, channel: Channel) -> Message | None:
    asked: Json | None = call.member("message_reference", dict)
    if asked is None:
        return None
    wanted = snowflake(asked.get("message_id"), "message_reference.message_id")
    if Permission.READ_MESSAGE_HISTORY not in channel_permissions(channel, call.bot_id):
        raise Refused(403, 160002, "Cannot reply without permission to read message history")
    if wanted in channel.messages:
        return channel.messages[wanted]
    if typed(
        asked.get("fail_if_not_exists"), "message_reference.fail_if_not_exists", bool, default=True
    ):
        raise bad_form("message_reference", "REPLIES_UNKNOWN_MESSAGE", "Unknown message")
    return None
