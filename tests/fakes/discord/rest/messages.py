"""Messages over REST: the form of a message, list, get, create, edit, delete, and typing."""

from typing import Any

from tests.fakes.discord.channels import Channel
from tests.fakes.discord.intents import Intent, readable
from tests.fakes.discord.messages import Allowed, Draft, Message
from tests.fakes.discord.people import User
from tests.fakes.discord.rest.calls import (
    Call,
    Refused,
    Route,
    bad_form,
    missing_permissions,
    snowflake,
    typed,
    unknown,
)
from tests.fakes.discord.world import Json, Permission, channel_permissions, may_write

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


_NONCE_SECONDS = 300.0
_EPOCH = 1_420_070_400.0


def shown(call: Call, message: Message) -> Json:
    """A message as the bot's application may read it, whatever its session asked for."""
    made = message.json()
    if message.channel.guild is None or Intent.MESSAGE_CONTENT in call.service.application.enabled:
        return made
    return readable(made, call.bot_id)


def _list(call: Call) -> tuple[int, Any]:
    channel = call.channel()
    limit = call.number("limit", 50, 1, 100)
    bounds = {
        name: int(snowflake(call.query[name], name))
        for name in ("around", "before", "after")
        if name in call.query
    }
    if Permission.READ_MESSAGE_HISTORY not in channel_permissions(channel, call.bot_id):
        return 200, []
    found = list(channel.messages.values())
    if "around" in bounds:
        older = [each for each in found if int(each.id) <= bounds["around"]][-(limit // 2 + 1) :]
        newer = [each for each in found if int(each.id) > bounds["around"]]
        found = [*older, *newer[: limit - len(older)]]
    elif "before" in bounds:
        found = [each for each in found if int(each.id) < bounds["before"]][-limit:]
    elif "after" in bounds:
        # The oldest ones after it, and these newest first.
        found = [each for each in found if int(each.id) > bounds["after"]][:limit]
    else:
        found = found[-limit:]
    return 200, [shown(call, each) for each in reversed(found)]


def _get(call: Call) -> tuple[int, Any]:
    return 200, shown(call, _message(call, call.channel(Permission.READ_MESSAGE_HISTORY)))


def _create(call: Call) -> tuple[int, Any]:
    channel = call.channel()
    if not channel.takes_messages:
        raise Refused(400, 50008, "Cannot send messages in a non-text channel")
    if not may_write(channel, call.bot_id):
        raise missing_permissions()
    if channel.guild is None and not all(each.takes_dms for each in channel.recipients.values()):
        raise Refused(403, 50007, "Cannot send messages to this user")
    if channel.locked:
        raise Refused(400, 160005, "Thread is locked")
    draft = read_draft(call, channel, call.world.bot)
    if call.member("enforce_nonce", bool, default=False) and draft.nonce is not None:
        known = _under_nonce(call, channel, draft.nonce)
        if known is not None:
            return 200, shown(call, known)
    return 200, shown(call, channel.post(draft))


def _edit(call: Call) -> tuple[int, Any]:
    message = _message(call, call.channel())
    if message.author is not call.world.bot:
        raise Refused(403, 50005, "Cannot edit a message authored by another user")
    if message.channel.archived:
        raise Refused(400, 50083, "Thread is archived")
    change(call, message)
    return 200, shown(call, message)


def change(call: Call, message: Message) -> None:
    """Give a message what the form says; what the form leaves out stays."""
    form = call.form()
    content = read_content(call) if "content" in form else message.content
    embeds = read_objects(call, "embeds") if "embeds" in form else message.embeds
    if not content.strip() and not embeds:
        raise Refused(400, 50006, "Cannot send an empty message")
    components = read_objects(call, "components") if "components" in form else message.components
    allowed = read_allowed(call) if "allowed_mentions" in form else None
    message.embeds, message.components = embeds, components
    message.edit(content, allowed)


def _delete(call: Call) -> tuple[int, Any]:
    channel = call.channel()
    message = _message(call, channel)
    if message.author is not call.world.bot:
        call.channel(Permission.MANAGE_MESSAGES)
    message.delete()
    return 204, None


def _type(call: Call) -> tuple[int, Any]:
    channel = call.channel()
    if not may_write(channel, call.bot_id):
        raise missing_permissions()
    call.service.typed.append(channel.id)
    call.world.bot.type_in(channel)
    return 204, None


def _message(call: Call, channel: Channel) -> Message:
    message = channel.messages.get(call.id("message_id"))
    if message is None:
        raise unknown("message")
    return message


def _under_nonce(call: Call, channel: Channel, nonce: str | int) -> Message | None:
    since = call.world.clock.now() - _NONCE_SECONDS
    for each in reversed(channel.messages.values()):
        if _EPOCH + (int(each.id) >> 22) / 1000 < since:
            return None
        own = each.author is call.world.bot and each.draft.nonce is not None
        if own and str(each.draft.nonce) == str(nonce):
            return each
    return None


_ONE = "/channels/{channel_id}/messages/{message_id}"
_ALL = "/channels/{channel_id}/messages"

ROUTES = (
    Route("GET", _ALL, _list),
    Route("GET", _ONE, _get),
    Route("POST", _ALL, _create),
    Route("PATCH", _ONE, _edit),
    Route("DELETE", _ONE, _delete),
    Route("POST", "/channels/{channel_id}/typing", _type),
)
