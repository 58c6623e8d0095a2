"""What the bot says, as the contents of events.

Owns the forms of messages, answers, threads and edits. Pure.
"""

import re
from typing import Any, Final

import orjson

from accord.relay.platforms.matrix.markdown import render
from accord.relay.platforms.matrix.places import Place, is_event, is_user

MAX_TEXT: Final = 4000
"""So long that, in any script and with its edit, it fits into the 64 KiB of an event."""

_MOST_BYTES: Final = 48 * 1024
_MOST_MENTIONS: Final = 20
_NAMED: Final = re.compile(r"(?<![\w/])@[a-zA-Z0-9._=/+-]{1,128}:[a-zA-Z0-9.-]{1,200}(?::\d{1,5})?")


def message(text: str, place: Place, reply_to: str | None, *, is_notice: bool) -> dict[str, Any]:
    """A message in a room or thread, as an answer where it is one.

    Args:
        text: What is said, in Markdown.
        place: Where.
        reply_to: The message that it answers; what is no event's id is left out.
        is_notice: Whether it is marked as automatic.
    """
    content = _spoken(text, is_notice=is_notice)
    answered = {"m.in_reply_to": {"event_id": reply_to}} if is_event(reply_to) else None
    if place.thread is not None:
        content["m.relates_to"] = {
            "rel_type": "m.thread",
            "event_id": place.thread,
            # To clients without threads it is an answer to what began this one.
            "is_falling_back": answered is None,
            **(answered or {"m.in_reply_to": {"event_id": place.thread}}),
        }
    elif answered is not None:
        content["m.relates_to"] = answered
    return content


def edit(text: str, message_id: str, *, is_notice: bool) -> dict[str, Any]:
    """The change of a message that the bot sent; it mentions nobody anew."""
    new = _spoken(text, is_notice=is_notice)
    whole = {
        **new,
        "body": f"* {text}",
        "m.mentions": {},
        "m.new_content": new,
        "m.relates_to": {"rel_type": "m.replace", "event_id": message_id},
    }
    if len(orjson.dumps(whole)) > _MOST_BYTES:
        for each in (whole, new):
            each.pop("format", None)
            each.pop("formatted_body", None)
    return whole


def _spoken(text: str, *, is_notice: bool) -> dict[str, Any]:
    content: dict[str, Any] = {
        "msgtype": "m.notice" if is_notice else "m.text",
        "body": text,
        "m.mentions": _mentioned(text),
    }
    html = render(text)
    if html is not None and len(html.encode()) <= _MOST_BYTES // 2:
        content |= {"format": "org.matrix.custom.html", "formatted_body": html}
    return content


def _mentioned(text: str) -> dict[str, Any]:
    """Who is named by a user's whole id. Never the whole room."""
    named = dict.fromkeys(match[0].rstrip(".") for match in _NAMED.finditer(text))
    users = [each for each in named if is_user(each)][:_MOST_MENTIONS]
    return {"user_ids": users} if users else {}
