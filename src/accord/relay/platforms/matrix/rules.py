"""Rooms, ids and message contents of Matrix, and Markdown as HTML for its clients. Pure.

A thread has no id of its own in Matrix: its chat id is the room's, a slash, and the id of its
first message. Rendered HTML has balanced tags, in linear time.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from html import escape
from typing import Any, Final, NamedTuple

import orjson

from accord.relay.rules.members import Payload

_FENCE: Final = re.compile(r"\s{0,3}(```+|~~~+)\s*([\w+#.-]{0,30})[^`]*", re.ASCII)
_HEADING: Final = re.compile(r"(#{1,6}) +(\S.*)")
_BULLET: Final = re.compile(r"\s{0,3}[-*+] +(\S.*)")
_NUMBER: Final = re.compile(r"\s{0,3}(\d{1,9})[.)] +(\S.*)", re.ASCII)
_QUOTE: Final = re.compile(r"> ?(.*)")
_SPAN: Final = re.compile(
    r"\\(?P<escaped>[\\`*_~\[\]])"
    r"|`(?P<code>[^`\n]+)`"
    r"|\[(?P<label>[^\[\]\n]{1,500})\]\((?P<link>(?:https?://|mailto:)[^\s()<>\"]{1,2000})\)"
    r"|(?P<address>https?://[^\s<>\"]+)"
    r"|(?P<mark>\*\*|__|~~|\*|_)"
)
_TAGS: Final = {"**": "strong", "__": "strong", "*": "em", "_": "em", "~~": "del"}
_SHOWN: Final[dict[str, Callable[[re.Match[str]], str]]] = {
    "escaped": lambda match: escape(match["escaped"]),
    "code": lambda match: f"<code>{escape(match['code'])}</code>",
    "link": lambda match: f'<a href="{escape(match["link"])}">{escape(match["label"])}</a>',
    "address": lambda match: escape(match["address"]),
}
_SEPARATOR: Final = "/$"
_USER: Final = re.compile(r"@[a-zA-Z0-9._=/+-]{1,128}:[a-zA-Z0-9.:\[\]-]{1,230}", re.ASCII)
_MEDIA: Final = re.compile(r"mxc://[A-Za-z0-9.:\[\]-]{1,230}/[A-Za-z0-9_-]{1,255}", re.ASCII)
MAX_TEXT: Final = 4000
"""So long that, in any script and with its edit, it fits into the 64 KiB of an event."""
_MOST_BYTES: Final = 48 * 1024
_MOST_MENTIONS: Final = 20
_NAMED: Final = re.compile(r"(?<![\w/])@[a-zA-Z0-9._=/+-]{1,128}:[a-zA-Z0-9.-]{1,200}(?::\d{1,5})?")
_CREATE: Final = "m.room.create"
_NAME: Final = "m.room.name"
_ALIAS: Final = "m.room.canonical_alias"
_TOPIC: Final = "m.room.topic"
_JOIN_RULES: Final = "m.room.join_rules"
_POWER: Final = "m.room.power_levels"
MEMBER: Final = "m.room.member"
ENCRYPTION: Final = "m.room.encryption"
PARENT: Final = "m.space.parent"
CHILD: Final = "m.space.child"
SINGLE: Final = (_CREATE, _NAME, _ALIAS, _TOPIC, _JOIN_RULES, _POWER)
"""Kinds of state that a room has one of."""
_CREATORS_STAND_ABOVE: Final = 12
"""The room version from which on whoever made a room may do everything in it."""
_MODERATOR: Final = 50
_INVITED_ONLY: Final = ("invite", "private")


def render_html(text: str) -> str | None:
    """The HTML of a text; None if plain text says the same."""
    written = _blocks(text.split("\n"))
    return None if written == _plain(text) else written


def _plain(text: str) -> str:
    return "<br>".join(escape(line) for line in text.split("\n"))


def _blocks(lines: list[str]) -> str:
    out: list[str] = []
    paragraphs = 0
    at = 0
    while at < len(lines):
        line = lines[at]
        if not line.strip():
            at += 1
        elif fence := _FENCE.fullmatch(line):
            html, at = _code(lines, at, fence[1], fence[2])
            out.append(html)
        elif heading := _HEADING.fullmatch(line):
            level = len(heading[1])
            out.append(f"<h{level}>{_spans(heading[2])}</h{level}>")
            at += 1
        elif _BULLET.fullmatch(line):
            items, at = _run(lines, at, _BULLET)
            out.append(f"<ul>{_items(items, 1)}</ul>")
        elif number := _NUMBER.fullmatch(line):
            items, at = _run(lines, at, _NUMBER)
            start = "" if int(number[1]) == 1 else f' start="{int(number[1])}"'
            out.append(f"<ol{start}>{_items(items, 2)}</ol>")
        elif _QUOTE.fullmatch(line):
            items, at = _run(lines, at, _QUOTE)
            quoted = "<br>".join(_spans(item[1]) for item in items)
            out.append(f"<blockquote>{quoted}</blockquote>")
        else:
            end = at + 1
            while end < len(lines) and not _begins_block(lines[end]):
                end += 1
            paragraphs += 1
            out.append("<br>".join(_spans(each) for each in lines[at:end]))
            if paragraphs > 1 or len(out) > 1 or any(each.strip() for each in lines[end:]):
                out[-1] = f"<p>{out[-1]}</p>"
            at = end
    return "".join(out)


def _begins_block(line: str) -> bool:
    forms = (_FENCE, _HEADING, _BULLET, _NUMBER, _QUOTE)
    return not line.strip() or any(form.fullmatch(line) for form in forms)


def _run(lines: list[str], at: int, form: re.Pattern[str]) -> tuple[list[re.Match[str]], int]:
    """The lines from here on that match a form, and where they end."""
    found: list[re.Match[str]] = []
    while at < len(lines) and (match := form.fullmatch(lines[at])):
        found.append(match)
        at += 1
    return found, at


def _items(items: list[re.Match[str]], group: int) -> str:
    return "".join(f"<li>{_spans(item[group])}</li>" for item in items)


def _code(lines: list[str], at: int, fence: str, language: str) -> tuple[str, int]:
    end = at + 1
    while end < len(lines) and not _closes(lines[end], fence):
        end += 1
    named = f' class="language-{escape(language)}"' if language else ""
    body = "".join(f"{escape(line)}\n" for line in lines[at + 1 : end])
    return f"<pre><code{named}>{body}</code></pre>", end + 1


def _closes(line: str, fence: str) -> bool:
    stripped = line.strip()
    return len(stripped) >= len(fence) and stripped == fence[0] * len(stripped)


def _spans(text: str) -> str:
    """The inline HTML of a line; a mark without its counterpart is text."""
    out: list[str] = []
    opened: dict[str, int] = {}
    at = 0
    for match in _SPAN.finditer(text):
        out.append(escape(text[at : match.start()]))
        at = match.end()
        mark = match["mark"]
        if mark is None:
            kind = str(match.lastgroup)
            out.append(_SHOWN[kind](match))
        elif mark in opened and _may_close(text, match):
            begun = opened[mark]
            # Marks that were opened inside and not closed are text.
            for inner in [each for each, place in opened.items() if place >= begun]:
                del opened[inner]
            tag = _TAGS[mark]
            out[begun] = f"<{tag}>"
            out.append(f"</{tag}>")
        else:
            if mark not in opened and _may_open(text, match):
                opened[mark] = len(out)
            out.append(mark)
    out.append(escape(text[at:]))
    return "".join(out)


def _may_open(text: str, match: re.Match[str]) -> bool:
    before, after = _around(text, match)
    return bool(after.strip()) and not (match[0][0] == "_" and before.isalnum())


def _may_close(text: str, match: re.Match[str]) -> bool:
    before, after = _around(text, match)
    return bool(before.strip()) and not (match[0][0] == "_" and after.isalnum())


def _around(text: str, match: re.Match[str]) -> tuple[str, str]:
    """The characters before and after a mark; empty at the ends."""
    start, end = match.span()
    return text[max(start - 1, 0) : start], text[end : end + 1]


class MatrixChat(NamedTuple):
    """A room, or a thread in it."""

    room: str
    thread: str | None = None

    @property
    def chat_id(self) -> str:
        """Its id in the relay."""
        return self.room if self.thread is None else f"{self.room}/{self.thread}"

    @classmethod
    def of(cls, chat_id: str) -> "MatrixChat":
        """The room or thread of a chat id."""
        # No event id has a second `$`, so the last one begins the thread's.
        room, separator, thread = chat_id.rpartition(_SEPARATOR)
        return cls(room, f"${thread}") if separator else cls(chat_id)


def is_user(name: str) -> bool:
    """Whether this is a user id, such as `@ann:example.org`."""
    return _USER.fullmatch(name) is not None


def is_room(name: object) -> bool:
    """Whether this is a room id."""
    return isinstance(name, str) and name.startswith("!") and 1 < len(name) <= 255


def is_event(name: object) -> bool:
    """Whether this is an event id."""
    return isinstance(name, str) and name.startswith("$") and 1 < len(name) <= 255


def is_media(address: object) -> bool:
    """Whether this is the URI of a file on a homeserver."""
    return isinstance(address, str) and _MEDIA.fullmatch(address) is not None


def server_of(user_id: str) -> str:
    """The server of a user id."""
    return user_id.partition(":")[2]


def localpart_of(user_id: str) -> str:
    """The local part of a user id."""
    return user_id.partition(":")[0].removeprefix("@")


def message_content(
    text: str, place: MatrixChat, reply_to: str | None, *, is_notice: bool
) -> dict[str, Any]:
    """The content of a message event, as a reply if `reply_to` is an event id.

    `text` is Markdown; `is_notice` marks it as automatic.
    """
    content = _spoken(text, is_notice=is_notice)
    answered = {"m.in_reply_to": {"event_id": reply_to}} if is_event(reply_to) else None
    if place.thread is not None:
        content["m.relates_to"] = {
            "rel_type": "m.thread",
            "event_id": place.thread,
            # Clients without threads show it as a reply to the first message.
            "is_falling_back": answered is None,
            **(answered or {"m.in_reply_to": {"event_id": place.thread}}),
        }
    elif answered is not None:
        content["m.relates_to"] = answered
    return content


def edit_content(text: str, message_id: str, *, is_notice: bool) -> dict[str, Any]:
    """The content of an edit; it mentions nobody anew."""
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
    html = render_html(text)
    if html is not None and len(html.encode()) <= _MOST_BYTES // 2:
        content |= {"format": "org.matrix.custom.html", "formatted_body": html}
    return content


def _mentioned(text: str) -> dict[str, Any]:
    """The users named by their whole id; never the whole room."""
    named = dict.fromkeys(match[0].rstrip(".") for match in _NAMED.finditer(text))
    users = [each for each in named if is_user(each)][:_MOST_MENTIONS]
    return {"user_ids": users} if users else {}


@dataclass(slots=True)
class Room:
    """A room."""

    id: str
    read_at: float = 0.0  # when its state was read, by the monotonic clock
    # Users who joined or were invited, with their display names.
    members: dict[str, str | None] = field(default_factory=dict)
    parents: set[str] = field(default_factory=set)  # the spaces that it names as canonical parents
    scope: str | None = None  # its scope, once that was looked up
    _single: dict[str, Payload] = field(default_factory=dict)
    _creator: str | None = None

    def apply(self, event: Payload) -> None:
        """Apply a state event; ignores anything else."""
        kind, key, content = event.get("type"), event.get("state_key"), event.get("content")
        if not isinstance(key, str) or not isinstance(content, dict):
            return
        if kind == MEMBER:
            self._apply_member(key, content)
        elif kind == PARENT:
            is_canonical = content.get("canonical") is True and bool(content.get("via"))
            (self.parents.add if is_canonical else self.parents.discard)(key)
            self.scope = None
        elif kind in SINGLE and not key:
            self._single[kind] = content
            if kind == _CREATE:
                self._creator = _text(event.get("sender"))

    def apply_all(self, events: Iterable[Any]) -> None:
        """Apply many."""
        for event in events:
            if isinstance(event, dict):
                self.apply(event)

    @property
    def name(self) -> str | None:
        """Its name, else its alias."""
        return self._said(_NAME, "name") or self._said(_ALIAS, "alias")

    @property
    def topic(self) -> str | None:
        """Its topic."""
        return self._said(_TOPIC, "topic")

    def is_direct(self, bot_id: str) -> bool:
        """Whether it is a chat between the bot and one other user.

        Judged by its members, since an invitation may claim anything. A room with a name is a group
        that is still small.
        """
        is_closed = self._said(_JOIN_RULES, "join_rule") in _INVITED_ONLY
        return (
            is_closed
            and len(self.members) == 2
            and bot_id in self.members
            and self.name is None
            and not self.parents
        )

    def may_manage(self, user_id: str) -> bool:
        """Whether a user may change its state."""
        if self._creators_stand_above and user_id in self._creators:
            return True
        levels = self._single.get(_POWER)
        if levels is None:
            return user_id in self._creators
        users = levels.get("users")
        given = users.get(user_id) if isinstance(users, dict) else None
        held = _level(given, _level(levels.get("users_default"), 0))
        return held >= max(1, _level(levels.get("state_default"), _MODERATOR))

    @property
    def _creators(self) -> set[str | None]:
        more = self._single.get(_CREATE, {}).get("additional_creators")
        named = more if self._creators_stand_above and isinstance(more, list) else ()
        return {self._creator, *(each for each in named if isinstance(each, str))}

    @property
    def _creators_stand_above(self) -> bool:
        version = self._said(_CREATE, "room_version") or ""
        is_number = version.isascii() and version.isdecimal() and len(version) < 6
        return is_number and int(version) >= _CREATORS_STAND_ABOVE

    def _apply_member(self, user_id: str, content: Payload) -> None:
        if content.get("membership") in ("join", "invite"):
            self.members[user_id] = _text(content.get("displayname"))
        else:
            self.members.pop(user_id, None)

    def _said(self, kind: str, member: str) -> str | None:
        return _text(self._single.get(kind, {}).get(member))


def membership_of(event: object, user_id: str) -> str | None:
    """The membership that an event gives a user; None for other events."""
    if not isinstance(event, dict) or event.get("type") != MEMBER:
        return None
    content = event.get("content")
    if event.get("state_key") != user_id or not isinstance(content, dict):
        return None
    return _text(content.get("membership"))


def _text(value: object) -> str | None:
    return value[:512] or None if isinstance(value, str) else None


def _level(value: object, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default
