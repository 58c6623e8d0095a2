"""Updates of Telegram as events, its entities and media, and Markdown as MarkdownV2. Pure.

A topic of a forum is a thread, and there is no scope. Entities are located in UTF-16 code units. A
file reference is valid for this bot alone and holds no secret. Rendered MarkdownV2 is always well
formed, in time linear in the text.
"""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from accord.relay.rules.members import MAX_ID, Payload, bad, integer, member, payload
from accord.relay.rules.messages import (
    InboundEvent,
    InboundKind,
    MessageEvent,
    MessageType,
    SessionSource,
    inbound_kind,
)
from accord.relay.rules.splitting import code_blocks

PLATFORM: Final = "telegram"
UPDATE_KINDS: Final = ("message", "channel_post", "my_chat_member", "chat_member")
"""The kinds of updates that Telegram is asked for; an edit is none of them."""

GENERAL_TOPIC: Final = 1
"""The topic of a forum that every forum has; a message in it is sent without a topic."""

_MAX_NAME: Final = 256
_LARGEST: Final = 2**53 - 1
_MAX_ENTITIES: Final = 200
_RESERVED: Final = re.compile(r"([\\_*\[\]()~`>#+\-=|{}.!])")
_IN_CODE: Final = re.compile(r"([\\`])")
_IN_URL: Final = re.compile(r"([\\)])")
_LANGUAGE: Final = re.compile(r"[A-Za-z0-9_+#.-]{1,32}")
_TICKS: Final = re.compile(r"`+")
_PUNCTUATION: Final = frozenset(r"""!"#$%&'()*+,-./:;<=>?@[\]^_`{|}~""")
_TOKEN: Final = re.compile(
    r"\\(?P<escaped>[!-/:-@\[-`{-~])"
    r"|(?P<ticks>`+)"
    r"|!?\[(?P<label>[^\[\]]{1,2000})\]\((?P<url>(?:[^\s()\[\]<>]|\([^\s()\[\]<>]*\))+)\)"
    r"|(?P<mark>\*+|_+|~+)"
    r"|(?P<paragraph>\n[ \t]*\n)"
)
_STYLES: Final = {"**": "*", "__": "*", "*": "_", "_": "_", "~~": "~"}
"""Which mark of MarkdownV2 stands for a mark of Markdown."""
REFERENCE: Final = "telegram:file/"
# An animation is a document too, and a venue has a location: the first that is there counts.
_FILES: Final = (
    ("animation", MessageType.VIDEO),
    ("video", MessageType.VIDEO),
    ("video_note", MessageType.VIDEO),
    ("voice", MessageType.VOICE),
    ("audio", MessageType.AUDIO),
    ("sticker", MessageType.STICKER),
    ("document", MessageType.DOCUMENT),
)


@dataclass(frozen=True, slots=True)
class BotUser:
    """The bot's user on Telegram."""

    id: int
    username: str = ""


@dataclass(frozen=True, slots=True)
class MarkedText:
    """The text of a message as an agent gets it."""

    text: str  # without the bot's name in a command
    # The command that it begins with, such as `/start`; empty if there is none, or it is for
    # another bot.
    command: str = ""
    is_addressed: bool = False  # whether it mentions the bot or begins with a command for it


def read_marked_text(text: str, entities: Any, me: BotUser) -> MarkedText:
    """Read a text with its entities; malformed entities are skipped."""
    units = text.encode("utf-16-le", "surrogatepass")
    own = f"@{me.username}".lower() if me.username else ""
    command, is_addressed, cut = "", False, 0
    for entity in _entities(entities):
        marked = _text_part(units, entity)
        match entity.get("type"):
            case "mention":
                is_addressed |= marked.lower() == own
            case "text_mention":
                user = entity.get("user")
                is_addressed |= isinstance(user, dict) and user.get("id") == me.id
            case "bot_command" if entity.get("offset") == 0 and marked.startswith("/"):
                name, at, bot = marked.partition("@")
                if not at or at + bot.lower() == own:
                    command, is_addressed, cut = name, True, len(marked)
    return MarkedText(command + text[cut:], command, is_addressed)


def _entities(value: Any) -> Sequence[Payload]:
    found = value[:_MAX_ENTITIES] if isinstance(value, list) else []
    return [each for each in found if isinstance(each, dict)]


def _text_part(units: bytes, entity: Payload) -> str:
    offset, length = entity.get("offset"), entity.get("length")
    if type(offset) is not int or type(length) is not int or offset < 0 or length <= 0:
        return ""
    return units[2 * offset : 2 * (offset + length)].decode("utf-16-le", "replace")


def render_markdown(text: str) -> str:
    """Render Markdown as MarkdownV2."""
    out: list[str] = []
    at = 0
    for block in code_blocks(text):
        code = text[block.body : block.end].removesuffix("\n")
        if not code.strip():
            continue  # nothing to show: it stays text
        out += [_inline(text[at : block.begin]), _fenced(block.opening, block.fence, code)]
        at = block.after
    return "".join([*out, _inline(text[at:])])


def escape_markdown(text: str) -> str:
    """Escape a text, so that all of it is shown as it is."""
    return _RESERVED.sub(r"\\\1", text)


def _fenced(opening: str, fence: str, code: str) -> str:
    language = _LANGUAGE.match(opening.partition(fence)[2].strip())
    body = _IN_CODE.sub(r"\\\1", code)
    return f"```{language[0] if language else ''}\n{body}\n```"


def _inline(text: str) -> str:
    line = _Line()
    _scan(text, line, has_links=True)
    return line.written()


def _scan(text: str, line: "_Line", *, has_links: bool) -> None:
    ticks = _Ticks(text)
    at = 0
    while token := _TOKEN.search(text, at):
        line.text(text[at : token.start()])
        at = token.end()
        match token.lastgroup:
            case "escaped":
                line.text(token["escaped"])
            case "ticks":
                closing = ticks.closing(token.start(), len(token["ticks"]))
                code = text[at:closing].strip() if closing else ""
                if closing and code and "\n\n" not in code:
                    line.raw("`" + _IN_CODE.sub(r"\\\1", code) + "`")
                    at = closing + len(token["ticks"])
                else:
                    line.text(token["ticks"])
            case "url" if has_links and token["label"].strip():
                line.link(token["label"], token["url"])
            case "url":
                line.text(token[0])
            case "mark":
                before = text[token.start() - 1] if token.start() else " "
                after = text[at] if at < len(text) else " "
                line.mark(token["mark"], before, after)
            case "paragraph":
                line.settle()
                line.text(token[0])
    line.text(text[at:])


class _Ticks:
    """The positions of runs of backticks, by their length."""

    def __init__(self, text: str) -> None:
        self._starts: dict[int, list[int]] = {}
        for run in _TICKS.finditer(text):
            self._starts.setdefault(len(run[0]), []).append(run.start())

    def closing(self, start: int, length: int) -> int | None:
        """Where the next run of this length after `start` begins."""
        starts = self._starts.get(length, [])
        place = bisect_left(starts, start + 1)
        return starts[place] if place < len(starts) else None


@dataclass(slots=True, eq=False)
class _Mark:
    """A mark in a text; it is plain text unless it finds its counterpart."""

    text: str
    is_open: bool = False
    is_close: bool = False


class _Line:
    """A text being rendered: finished parts, and marks between them."""

    def __init__(self) -> None:
        self._parts: list[str | _Mark] = []
        self._waiting: list[_Mark] = []
        self._counts: Counter[str] = Counter()

    def text(self, text: str) -> None:
        """Append plain text."""
        if text:
            self.raw(escape_markdown(text))

    def raw(self, written: str) -> None:
        """Append MarkdownV2."""
        self._parts.append(written)

    def mark(self, run: str, before: str, after: str) -> None:
        """Append a run of marks, which opens, closes or is text."""
        opens, closes = _flanks(run[0], before, after)
        for text in self._split(run):
            mark = _Mark(text)
            self._parts.append(mark)
            if text not in _STYLES:
                continue
            if closes and self._counts[text]:
                self._close(mark)
            elif opens:
                self._waiting.append(mark)
                self._counts[text] += 1

    def link(self, label: str, url: str) -> None:
        """Append a link; marks in its label match none outside."""
        around = self._waiting, self._counts
        self.raw("[")
        self.settle()
        _scan(label, self, has_links=False)
        self._waiting, self._counts = around
        self.raw("](" + _IN_URL.sub(r"\\\1", url) + ")")

    def settle(self) -> None:
        """Turn the marks that are still open into text."""
        self._waiting, self._counts = [], Counter()

    def written(self) -> str:
        """All of it in MarkdownV2, where no style is nested in itself."""
        out: list[str] = []
        depths: Counter[str] = Counter()
        for part in self._parts:
            if isinstance(part, str):
                out.append(part)
            elif not (part.is_open or part.is_close):
                out.append(escape_markdown(part.text))
            else:
                style = _STYLES[part.text]
                depths[style] += 1 if part.is_open else -1
                if depths[style] != part.is_open:
                    continue
                # A style that ends and starts at one place goes on: `__` would be another style.
                if part.is_open and out and out[-1] == style:
                    out.pop()
                else:
                    out.append(style)
        return "".join(out)

    def _split(self, run: str) -> tuple[str, ...]:
        if len(run) != 3 or run[0] == "~":
            return (run,)
        is_inner = bool(self._waiting) and self._waiting[-1].text == run[0]
        return (run[0], run[:2]) if is_inner else (run[:2], run[0])

    def _close(self, mark: _Mark) -> None:
        while True:
            opened = self._waiting.pop()
            self._counts[opened.text] -= 1
            if opened.text == mark.text:
                opened.is_open = mark.is_close = True
                return


def _flanks(mark: str, before: str, after: str) -> tuple[bool, bool]:
    """Whether a run of marks may open and close, by its neighbours."""
    opens = not after.isspace() and (after not in _PUNCTUATION or not _is_word(before))
    closes = not before.isspace() and (before not in _PUNCTUATION or not _is_word(after))
    if mark == "_":  # as in snake_case
        return opens and not _is_word(before), closes and not _is_word(after)
    return opens, closes


def _is_word(character: str) -> bool:
    return not character.isspace() and character not in _PUNCTUATION


@dataclass(frozen=True, slots=True)
class MessageMedia:
    """The media of a message; `text` is used if the message has none of its own."""

    kind: MessageType
    urls: tuple[str, ...] = ()
    text: str = ""


def read_media(message: Payload) -> MessageMedia | None:
    """The file or place in a message; None if there is none that we know."""
    photo = message.get("photo")
    if isinstance(photo, list) and photo and (url := _reference(photo[-1])):
        return MessageMedia(MessageType.PHOTO, (url,))  # the sizes of one photo, the largest last
    for name, kind in _FILES:
        file: Any = message.get(name)
        if url := _reference(file):
            emoji = file.get("emoji") if name == "sticker" else None
            return MessageMedia(kind, (url,), emoji if isinstance(emoji, str) else "")
    return _place(message)


def _reference(file: Any) -> str:
    name = file.get("file_id") if isinstance(file, dict) else None
    if not isinstance(name, str) or not 0 < len(name) <= MAX_ID or not name.isascii():
        return ""
    return REFERENCE + name if name.isprintable() and " " not in name else ""


def _place(message: Payload) -> MessageMedia | None:
    venue = message.get("venue")
    named = venue if isinstance(venue, dict) else {}
    location = named.get("location") or message.get("location")
    if not isinstance(location, dict):
        return None
    at: list[Any] = [location.get(name) for name in ("latitude", "longitude")]
    if not all(type(each) in (int, float) and -180 <= each <= 180 for each in at):
        return None
    words = [named.get(name) for name in ("title", "address")]
    told = [each for each in words if isinstance(each, str) and each]
    return MessageMedia(MessageType.LOCATION, text="\n".join([*told, f"{at[0]:.6f}, {at[1]:.6f}"]))


def update_id(update: Any) -> int | None:
    """The number of an update; None if it has none."""
    number = update.get("update_id") if isinstance(update, dict) else None
    return number if type(number) is int and 0 <= number <= _LARGEST else None


def update_kind(update: Any) -> str:
    """The kind of an update, for logs: one of those that Telegram documents."""
    if isinstance(update, dict):
        for name in (*UPDATE_KINDS, "edited_message", "edited_channel_post", "callback_query"):
            if name in update:
                return name
    return "unknown"


def stale_chat(update: Payload) -> str | None:
    """The chat in which a membership changed, if the update says so."""
    for name in ("chat_member", "my_chat_member"):
        if update.get(name) is not None:
            return str(_id(member(member(update, name), "chat")))
    return None


def update_inbound(update: Payload, me: BotUser) -> InboundEvent | None:
    """The message in an update, if any; raises RelayError if it is malformed."""
    number = update_id(update)
    if number is None:
        raise bad("an update has a number")
    post = update.get("message") or update.get("channel_post")
    if post is None:
        return None
    message = payload(post, "a message")
    sender = member(message, "from")
    if sender and _id(sender) == me.id:
        return None
    chat = member(message, "chat")
    said = _said(message, me)
    # Replies to direct messages of a channel need more parameters than we send.
    if said is None or chat.get("is_direct_messages") is True:
        return None
    words, kind_of, urls = said
    answered = _answered(message)
    source = _source(message, chat, sender)
    return InboundEvent(
        PLATFORM,
        str(me.id),
        str(number),
        MessageEvent(
            words.text,
            source,
            kind_of,
            source.message_id,
            None if answered is None else str(_message_id(answered)),
            urls,
            str(me.id),
        ),
        kind=inbound_kind(words.text) if words.command else InboundKind.MESSAGE,
        author_is_bot=sender.get("is_bot") is True and not message.get("sender_chat"),
        addressed=source.is_dm or words.is_addressed or _is_by(answered, me),
    )


def chat_type(chat: Payload) -> str:
    """The type of a chat on the relay's wire."""
    match chat.get("type"):
        case "private":
            return "dm"
        case "channel":
            return "channel"
        case "group" | "supergroup":
            return "forum" if chat.get("is_forum") is True else "group"
    raise bad("expected a type of chat", where="/chat/type")


def chat_name(chat: Payload) -> str | None:
    """The name of a chat or a user."""
    title = _text(chat.get("title"))
    names = [_text(chat.get(name)) for name in ("first_name", "last_name")]
    name = title or " ".join(each for each in names if each) or _text(chat.get("username"))
    return name[:_MAX_NAME] or None


def _said(message: Payload, me: BotUser) -> tuple[MarkedText, MessageType, tuple[str, ...]] | None:
    text = _text(message.get("text"))
    if text:
        words = read_marked_text(text, message.get("entities"), me)
        return words, MessageType.COMMAND if words.command else MessageType.TEXT, ()
    media = read_media(message)
    if media is None:
        return None  # a message about the chat itself, or of a kind that we do not know
    caption = _text(message.get("caption"))
    if caption:
        return (
            read_marked_text(caption, message.get("caption_entities"), me),
            media.kind,
            media.urls,
        )
    return MarkedText(_text(media.text)), media.kind, media.urls


def _source(message: Payload, chat: Payload, sender: Payload) -> SessionSource:
    # A channel, or an administrator who stays anonymous, writes in the name of a chat; `from` is
    # then an account that all such authors share.
    author = member(message, "sender_chat") or sender
    topic = None
    if message.get("is_topic_message") is True:
        topic = integer(message, "message_thread_id")
    return SessionSource(
        platform=PLATFORM,
        chat_id=str(_id(chat)),
        chat_type=chat_type(chat),
        chat_name=chat_name(chat),
        user_id=str(_id(author)) if author else None,
        user_name=chat_name(author),
        thread_id=None if topic in (None, GENERAL_TOPIC) else str(topic),
        message_id=str(_message_id(message)),
    )


def _answered(message: Payload) -> Payload | None:
    answered = member(message, "reply_to_message")
    # Every message in a topic formally replies to the service message that created it.
    return None if not answered or "forum_topic_created" in answered else answered


def _is_by(answered: Payload | None, me: BotUser) -> bool:
    return answered is not None and member(answered, "from").get("id") == me.id


def _id(given: Payload) -> int:
    number = integer(given, "id")
    if abs(number) > _LARGEST:
        raise bad("expected an id", where="/id")
    return number


def _message_id(message: Payload) -> int:
    number = integer(message, "message_id")
    if not 0 <= number <= _LARGEST:
        raise bad("expected the number of a message", where="/message_id")
    return number


def _text(value: Any) -> str:
    """A text without lone surrogates; empty for anything else."""
    if not isinstance(value, str) or value.isascii():
        return value if isinstance(value, str) else ""
    return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def chat_of(update: Any) -> int | None:
    """The chat of an update, to keep its updates in order."""
    for value in update.values() if isinstance(update, dict) else ():
        chat = value.get("chat") if isinstance(value, dict) else None
        number = chat.get("id") if isinstance(chat, dict) else None
        if type(number) is int:
            return number
    return None
