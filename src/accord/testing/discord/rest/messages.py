"""Messages over REST: list, get, create, edit, delete, and typing.

Owns the order in which these are checked.
"""

from typing import Any

from accord.testing.discord.channels import Channel
from accord.testing.discord.intents import Intent, readable
from accord.testing.discord.messages import Message
from accord.testing.discord.permissions import Permission, channel_permissions, may_write
from accord.testing.discord.rest.calls import Call, Route, snowflake
from accord.testing.discord.rest.drafts import (
    read_allowed,
    read_content,
    read_draft,
    read_objects,
)
from accord.testing.discord.rest.refusals import Refused, missing_permissions, unknown
from accord.testing.discord.world import Json

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
