"""Messages and forwarded requests: as platforms give them, on the wire, and their session keys.

A text may be for the bot: `is_stop` and `read_link_request` recognise that. Codes that it contains
are compared by the connector, in constant time.

There are two dialects of session keys. `hermes` is what existing gateways compute: without the
scope, and with `relay` for platforms unknown to them. `scoped` adds the scope and escapes every
component. `SessionRules` are what one gateway has declared about its keys.
"""

import base64
import binascii
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal, Self, get_args

from accord.kernel import canonical
from accord.relay.errors import RelayError
from accord.relay.rules import members
from accord.relay.rules.members import bad

if TYPE_CHECKING:
    # Gateways import this module, and need no pydantic.
    from pydantic import SecretStr

GENERIC_PLATFORM: Final = "relay"
"""The platform of a source that names none."""

KNOWN_TO_EXISTING_GATEWAYS: Final = frozenset(
    {
        "api_server",
        "bluebubbles",
        "dingtalk",
        "discord",
        "email",
        "feishu",
        "homeassistant",
        "local",
        "matrix",
        "mattermost",
        "relay",
        "signal",
        "slack",
        "sms",
        "telegram",
        "webhook",
        "wecom",
        "wecom_callback",
        "weixin",
        "whatsapp",
    }
)
"""The platforms that existing gateways know; they call every other one `relay`."""

# Some existing gateways do not know this one, and do not say so: both keys are used.
_KNOWN_TO_SOME: Final = "webhook"

_ALWAYS: Final = (
    "platform",
    "chat_id",
    "chat_type",
    "chat_name",
    "user_id",
    "user_name",
    "thread_id",
    "chat_topic",
)
_WHEN_SET: Final = (
    "user_id_alt",
    "chat_id_alt",
    "scope_id",
    "parent_chat_id",
    "message_id",
    "prospective_thread_id",
    "profile",
)


@dataclass(frozen=True, slots=True)
class SessionSource:
    """The chat, thread and author of a message.

    Attributes:
        chat_type: `dm`, `group`, `channel`, `thread` or `forum`; others are passed on.
        scope_id: The server around the chat: Discord guild, Slack workspace, Matrix server.
        parent_chat_id: The channel, where `chat_id` is a thread in it.
        message_id: The message that triggered the event.
        prospective_thread_id: The thread into which the answer will be moved.
        profile: Which of several agents in one gateway shall take it: the one that answered last in
            the chat. It is a hint inside one instance and decides nothing else.
    """

    platform: str = GENERIC_PLATFORM
    chat_id: str = ""
    chat_type: str = "dm"
    chat_name: str | None = None
    user_id: str | None = None
    user_name: str | None = None
    thread_id: str | None = None
    chat_topic: str | None = None
    user_id_alt: str | None = None
    chat_id_alt: str | None = None
    scope_id: str | None = None
    parent_chat_id: str | None = None
    message_id: str | None = None
    prospective_thread_id: str | None = None
    profile: str | None = None

    @property
    def is_dm(self) -> bool:
        """Whether it is a direct chat."""
        return self.chat_type == "dm"

    @classmethod
    def from_dict(cls, value: Any) -> Self:
        """Read the wire form; unknown members, `guild_id` among them, are ignored."""
        payload = members.payload(value, "a source")
        text = members.optional_text
        found = cls(
            text(payload, "platform") or GENERIC_PLATFORM,
            members.text(payload, "chat_id", ""),
            text(payload, "chat_type") or "dm",
            *(text(payload, name) for name in (*_ALWAYS[3:], *_WHEN_SET[:-1])),
        )
        profile = find_profile(payload)
        return found if profile is None else replace(found, profile=profile)

    def to_dict(self) -> dict[str, Any]:
        """The wire form: eight members always, the others if set."""
        written = {name: getattr(self, name) for name in _ALWAYS}
        for name in _WHEN_SET:
            if (value := getattr(self, name)) is not None:
                written[name] = value
        return written


Dialect = Literal["hermes", "scoped"]
_DIALECTS: Final[tuple[Dialect, ...]] = get_args(Dialect)

KeyForm = Literal["2026-07", "current"]
"""The revision of existing gateways whose keys are meant.

The current one puts Slack's scope before the chat, keys a message by the thread that its answer
will open, and keeps a profile named `main` apart from the default profile.
"""
_FORMS: Final[tuple[KeyForm, ...]] = get_args(KeyForm)
_PROFILE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ESCAPES: Final = str.maketrans({"%": "%25", ":": "%3A", "=": "%3D"})


def read_dialect(value: Any) -> Dialect:
    """The dialect that a gateway asks for; `hermes` by default."""
    if value is None:
        return "hermes"
    for dialect in _DIALECTS:
        if value == dialect:
            return dialect
    raise bad("expected hermes or scoped", where="/session_keys")


def read_key_form(value: Any) -> KeyForm:
    """The form of keys that a gateway declares; `2026-07` by default."""
    if value is None:
        return "2026-07"
    for form in _FORMS:
        if value == form:
            return form
    raise bad(f"expected one of {', '.join(_FORMS)}", where="/session_key_form")


def read_profile(value: Any) -> str | None:
    """The name of a profile: short and plain, since it becomes a part of keys."""
    if value is None or value == "":
        return None
    if not isinstance(value, str) or not _PROFILE.fullmatch(value):
        raise bad("expected a name of letters, digits, dots and dashes", where="/profile")
    return value


def find_profile(metadata: Mapping[str, Any]) -> str | None:
    """The profile that a source, a forward or an action names; None for the default and nonsense.

    It is a hint, for which nothing is refused.
    """
    named = metadata.get("profile")
    is_name = isinstance(named, str) and named != "default" and _PROFILE.fullmatch(named)
    return named if is_name else None


def session_key(
    source: SessionSource,
    *,
    dialect: Dialect = "hermes",
    group_sessions_per_user: bool = True,
    thread_sessions_per_user: bool = False,
    profile: str | None = None,
    form: KeyForm = "2026-07",
) -> str:
    """The key of the session that a message from this source belongs to.

    Args:
        group_sessions_per_user: Whether each member of a group has a session of their own.
        thread_sessions_per_user: The same inside threads.
        profile: The agent's profile; None, '' and `default` are `main`.
    """
    owner = "main" if profile is None or profile in ("", "default") else profile
    chat_type, thread = source.chat_type, source.thread_id
    if form == "current":
        if profile == "main":
            owner = "main~"
        if not thread and source.prospective_thread_id and not source.is_dm:
            chat_type, thread = "thread", source.prospective_thread_id
    tagged = _components(source, thread, group_sessions_per_user, thread_sessions_per_user)
    if dialect == "hermes":
        is_known = source.platform in KNOWN_TO_EXISTING_GATEWAYS
        platform = source.platform if is_known else GENERIC_PLATFORM
        if form == "current" and platform == "slack":
            tagged = [("s", source.scope_id), *tagged]
        place = (owner, platform, chat_type)
        return ":".join(["agent", *place, *(part for _, part in tagged if part)])
    parts = [
        f"{tag}={part.translate(_ESCAPES)}"
        for tag, part in (("s", source.scope_id), *tagged)
        if part
    ]
    place = (owner, source.platform, chat_type)
    return ":".join(["agent", *(part.translate(_ESCAPES) for part in place), *parts])


@dataclass(frozen=True, slots=True)
class SessionRules:
    """How one gateway keys its sessions, as its hello declares it."""

    dialect: Dialect = "hermes"
    group_sessions_per_user: bool = True
    thread_sessions_per_user: bool = False
    profile: str | None = None
    form: KeyForm = "2026-07"

    @classmethod
    def from_dict(cls, value: Any) -> Self:
        """Read the members of a hello, or what `to_dict` wrote."""
        payload = members.payload(value, "session rules")
        return cls(
            read_dialect(payload.get("session_keys")),
            members.flag(payload, "group_sessions_per_user", True),
            members.flag(payload, "thread_sessions_per_user", False),
            read_profile(payload.get("profile")),
            read_key_form(payload.get("session_key_form")),
        )

    def to_dict(self, declared: Collection[str] = ()) -> dict[str, Any]:
        """The members of a hello; defaults are left out, except those of `declared`."""
        names = {"dialect": "session_keys", "form": "session_key_form"}
        ours, usual = asdict(self), asdict(type(self)())
        return {
            names.get(each, each): ours[each]
            for each in ours
            if ours[each] != usual[each] or each in declared
        }

    def in_dialect(self, dialect: Dialect) -> Self:
        """The same rules in a dialect."""
        return replace(self, dialect=dialect)

    def key(self, source: SessionSource) -> str:
        """The key of the session that a message from this source belongs to."""
        return self._key(source, self.form)

    def keys(self, source: SessionSource) -> tuple[str, ...]:
        """That key first, then the others by which existing gateways may know the session.

        Those gateways do not say their revision. A profile named `main` has no other key: in the
        older form it would be the key of the default profile's session.
        """
        if self.dialect == "scoped" or "main" in (self.profile, source.profile):
            return (self.key(source),)
        forms = sorted(_FORMS, key=lambda form: form != self.form)
        sources = [source]
        if source.platform == _KNOWN_TO_SOME:
            sources.append(replace(source, platform=GENERIC_PLATFORM))
        return tuple(dict.fromkeys(self._key(each, form) for each in sources for form in forms))

    def _key(self, source: SessionSource, form: KeyForm) -> str:
        return session_key(
            source,
            dialect=self.dialect,
            group_sessions_per_user=self.group_sessions_per_user,
            thread_sessions_per_user=self.thread_sessions_per_user,
            profile=source.profile or self.profile,
            form=form,
        )


DEFAULT_SESSIONS: Final = SessionRules()
"""What a gateway that declares nothing does."""
DECLARABLE: Final = ("group_sessions_per_user", "thread_sessions_per_user", "profile")
"""The rules that an operator may set for a gateway that does not declare them."""


@dataclass(frozen=True, slots=True)
class SessionOverride:
    """What an operator says of the sessions of a gateway; None says nothing.

    Pinned, it counts before what the gateway declares, else where the gateway declares nothing.
    """

    group_sessions_per_user: bool | None = None
    thread_sessions_per_user: bool | None = None
    profile: str | None = None
    pinned: bool = False

    @classmethod
    def from_dict(cls, value: Any) -> Self:
        """Read what `to_dict` wrote, or a request."""
        payload = members.payload(value, "session rules")
        group, thread = (
            members.flag(payload, name, False) if payload.get(name) is not None else None
            for name in DECLARABLE[:2]
        )
        profile = read_profile(payload.get("profile"))
        return cls(group, thread, profile, members.flag(payload, "pinned", False))

    def to_dict(self) -> dict[str, Any]:
        """What it says; empty where it says nothing."""
        said = {name: value for name, value in asdict(self).items() if value is not None}
        return said if len(said) > 1 else {}

    def chosen(self, declared: Collection[str]) -> dict[str, Any]:
        """The rules that it sets for a gateway that has declared some."""
        return {
            name: value
            for name in DECLARABLE
            if (value := getattr(self, name)) is not None and (self.pinned or name not in declared)
        }

    def apply(self, rules: SessionRules, declared: Collection[str]) -> SessionRules:
        """The rules of a gateway with what the operator says."""
        return replace(rules, **self.chosen(declared))


def lookup_keys(session_key: str) -> tuple[str, ...]:
    """The keys under which the session that a gateway names may be stored.

    A gateway with several profiles puts the profile into the key's name space, without having
    declared it. A lookup is within one instance, so that the profile decides nothing.
    """
    name, _, rest = session_key.removeprefix("agent:").partition(":")
    if not session_key.startswith("agent:") or not rest:
        return (session_key,)
    places = [rest]
    if rest.startswith(f"{GENERIC_PLATFORM}:"):
        places.append(f"{_KNOWN_TO_SOME}:{rest.removeprefix(f'{GENERIC_PLATFORM}:')}")
    owners = dict.fromkeys((name, "main"))
    return tuple(f"agent:{owner}:{place}" for owner in owners for place in places)


def interaction_sources(
    forward: "PassthroughForward", source: SessionSource
) -> list[SessionSource]:
    """The sources by which existing gateways key a forwarded interaction, besides `source`.

    Older ones use the generic platform and chat type `channel`; current ones use the platform's
    name and `thread`, `group` or `dm`.
    """
    decoded = interaction_event(forward)
    if decoded is None:
        return []
    others = [decoded.source]
    if source.chat_type != "thread":
        kind = "group" if decoded.source.scope_id else "dm"
        others.append(replace(decoded.source, platform=source.platform, chat_type=kind))
    return others


def _components(
    source: SessionSource, thread: str | None, group_per_user: bool, thread_per_user: bool
) -> list[tuple[str, str | None]]:
    """The tagged components of a key: chat, thread and user."""
    chat = source.chat_id
    user = source.user_id_alt or source.user_id
    if source.platform == "whatsapp":
        user = _bare_number(user)
        chat = (_bare_number(chat) or "") if source.is_dm else chat
    if source.is_dm:
        return [("c", chat) if chat else ("u", user), ("t", thread)]
    is_per_user = group_per_user and (thread_per_user or not thread)
    return [("c", chat), ("t", thread), ("u", user if is_per_user else None)]


def _bare_number(address: str | None) -> str | None:
    """A WhatsApp address without device, server and plus sign."""
    if not address:
        return address
    return address.partition("@")[0].partition(":")[0].removeprefix("+") or address


class MessageType(Enum):
    """The content types of messages."""

    TEXT = "text"
    LOCATION = "location"
    PHOTO = "photo"
    VIDEO = "video"
    AUDIO = "audio"
    VOICE = "voice"
    DOCUMENT = "document"
    STICKER = "sticker"
    COMMAND = "command"


_TYPES = {each.value: each for each in MessageType}


@dataclass(frozen=True, slots=True)
class MessageEvent:
    """One message, normalised.

    Attributes:
        bot_id: The bot that saw it. An extension that older gateways ignore; it says nothing about
            the tenant.
    """

    text: str
    source: SessionSource
    message_type: MessageType = MessageType.TEXT
    message_id: str | None = None
    reply_to_message_id: str | None = None
    media_urls: tuple[str, ...] = ()
    bot_id: str | None = None

    @classmethod
    def from_dict(cls, value: Any) -> Self:
        """Read the wire form; an unknown type is read as text."""
        payload = members.payload(value, "an event")
        return cls(
            members.text(payload, "text", ""),
            SessionSource.from_dict(members.member(payload, "source")),
            _TYPES.get(members.text(payload, "message_type", "text"), MessageType.TEXT),
            members.optional_text(payload, "message_id"),
            members.optional_text(payload, "reply_to_message_id"),
            members.texts(payload, "media_urls"),
            members.optional_text(payload, "botId"),
        )

    def to_dict(self) -> dict[str, Any]:
        """The wire form."""
        written: dict[str, Any] = {
            "text": self.text,
            "message_type": self.message_type.value,
            "message_id": self.message_id,
            "reply_to_message_id": self.reply_to_message_id,
            "media_urls": list(self.media_urls),
            "source": self.source.to_dict(),
        }
        if self.bot_id is not None:
            written["botId"] = self.bot_id
        return written


_OPTION_DEPTH: Final = 3  # Discord nests a command's options no deeper: group, command, option


@dataclass(frozen=True, slots=True)
class PassthroughForward:
    """A forwarded HTTP request, with its exact body."""

    platform: str = ""
    bot_id: str = ""
    method: str = ""
    path: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    # As that of a source.
    profile: str | None = None

    @classmethod
    def from_dict(cls, value: Any) -> Self:
        """Read the wire form; missing members are empty."""
        payload = members.payload(value, "a forward")
        try:
            body = base64.b64decode(members.text(payload, "bodyB64", ""), validate=True)
        except (binascii.Error, ValueError):  # the latter where it is not ASCII
            raise members.bad("expected base64", where="/bodyB64") from None
        return cls(
            members.text(payload, "platform", ""),
            members.text(payload, "botId", ""),
            members.text(payload, "method", ""),
            members.text(payload, "path", ""),
            _headers(payload.get("headers")),
            body,
            find_profile(payload),
        )

    def to_dict(self) -> dict[str, Any]:
        """The wire form; `profile` only if it is set."""
        written = {
            "platform": self.platform,
            "botId": self.bot_id,
            "method": self.method,
            "path": self.path,
            "headers": [list(header) for header in self.headers],
            "bodyB64": base64.b64encode(self.body).decode("ascii"),
        }
        return written if self.profile is None else written | {"profile": self.profile}


def interaction_event(forward: PassthroughForward) -> MessageEvent | None:
    """The message that a Discord interaction amounts to; None for anything else.

    Its platform is `relay`, as with existing gateways, so that its session has the same key there.
    """
    if forward.platform != "discord":
        return None
    try:
        payload = members.payload(canonical.decode(forward.body), "an interaction")
        data = members.member(payload, "data")
        text = members.optional_text(data, "name") or members.text(data, "custom_id", "")
        scope = members.optional_text(payload, "guild_id")
        member = members.member(payload, "member")
        user = members.member(member, "user") or members.member(payload, "user")
        source = SessionSource(
            platform=GENERIC_PLATFORM,
            chat_id=members.text(payload, "channel_id", ""),
            chat_type="channel" if scope else "dm",
            user_id=members.optional_text(user, "id"),
            user_name=members.optional_text(user, "username"),
            scope_id=scope,
            message_id=members.optional_text(payload, "id"),
            profile=forward.profile,
        )
    except (canonical.CanonicalError, RelayError):
        return None
    if not text:
        return None
    spoken = " ".join([text, *_options(data.get("options"), _OPTION_DEPTH)])
    return MessageEvent(spoken, source, message_id=source.message_id, bot_id=forward.bot_id or None)


def _options(value: Any, depth: int) -> list[str]:
    """The names of sub-commands and the values of options, in order."""
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


STOP: Final = "/stop"
"""What a user writes to end the running turn of their session."""


def stop_message(event: MessageEvent) -> MessageEvent | None:
    """The message by which an existing gateway ends a turn; None where an interrupt does.

    Such a gateway looks for interrupts where it has an adapter of the source's platform, and behind
    a connector it has one of the generic platform alone. Names of people and chats are left out.
    """
    if event.source.platform not in KNOWN_TO_EXISTING_GATEWAYS - {GENERIC_PLATFORM}:
        return None
    source = replace(event.source, chat_name=None, user_name=None, chat_topic=None)
    return MessageEvent(STOP, source, message_id=event.message_id, bot_id=event.bot_id)


def is_stop(text: str) -> bool:
    """Whether a message asks to end the running turn."""
    return text.strip().lower() == STOP


LINK_CODE_BITS: Final = 50
"""The random bits of a code; the specification demands at least 40."""

_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_READABLE: Final = str.maketrans("OIL", "011", "-")
_CODE: Final = r"[0-9A-Za-z]{5}-?[0-9A-Za-z]{5}"
_WHOLE_CODE: Final = re.compile(_CODE, re.ASCII)
_ANY_CODE: Final = re.compile(rf"(?<![0-9A-Za-z-]){_CODE}(?![0-9A-Za-z-])", re.ASCII)
_COMMAND: Final = re.compile(
    r"\s*/(link|unlink|agents|default|help)(?:@\w{1,64})?(?!\S)", re.ASCII | re.IGNORECASE
)
_YES: Final = frozenset({"yes", "y", "/yes", "confirm", "/confirm"})
_NO: Final = frozenset({"no", "n", "/no", "cancel", "/cancel"})
_MAX_CODES: Final = 8
_LONGEST_ANSWER: Final = 40
# As long as the name of an instance may be.
_LONGEST_NAME: Final = 512


class LinkCommand(Enum):
    """The commands that are between a person and the bot."""

    LINK = "link"
    UNLINK = "unlink"
    CONFIRM = "confirm"
    DECLINE = "decline"
    BURN = "burn"
    """A code was shown in a group and is cancelled."""
    AGENTS = "agents"
    DEFAULT = "default"
    HELP = "help"


@dataclass(frozen=True, slots=True)
class LinkRequest:
    """A message to the bot; `code` in its canonical spelling, None without a valid one.

    `agent` is the name or the number of an agent, as the person wrote it.
    """

    command: LinkCommand
    code: str | None = None
    agent: str | None = None

    def __repr__(self) -> str:
        return f"LinkRequest({self.command.value})"  # a code is a secret


def read_link_request(text: str, *, is_dm: bool, awaiting: bool) -> LinkRequest | None:
    """Read a message to the bot; `awaiting` when its author was asked to confirm a link.

    Only `/help` alone is the bot's; with more words it is an agent's.
    """
    if is_dm and awaiting and len(text) <= _LONGEST_ANSWER:
        answer = text.strip().lower()
        if answer in _YES:
            return LinkRequest(LinkCommand.CONFIRM)
        if answer in _NO:
            return LinkRequest(LinkCommand.DECLINE)
    command = _COMMAND.match(text)
    if command is None:
        return None
    code = _spelled(text[command.end() : command.end() + _LONGEST_ANSWER])
    asked = LinkCommand(command[1].lower())
    if not is_dm:
        is_about_codes = asked in (LinkCommand.LINK, LinkCommand.UNLINK)
        return LinkRequest(LinkCommand.BURN, code) if code and is_about_codes else None
    if asked is LinkCommand.LINK:
        return LinkRequest(asked, code)
    rest = " ".join(text[command.end() : command.end() + _LONGEST_NAME].split())
    if asked is LinkCommand.HELP:
        return None if rest else LinkRequest(asked)
    return LinkRequest(asked, agent=rest.strip("“”\"'") or None)


def find_link_codes(text: str) -> tuple[str, ...]:
    """The possible codes in a group's message, at most eight."""
    found: list[str] = []
    for match in _ANY_CODE.finditer(text):
        found.append(match[0].upper().translate(_READABLE))
        if len(found) == _MAX_CODES:
            break
    return tuple(found)


def write_link_code(chance: int) -> str:
    """A code for people to type, from `LINK_CODE_BITS` random bits."""
    digits = "".join(_ALPHABET[chance >> shift & 31] for shift in range(LINK_CODE_BITS - 5, -1, -5))
    return f"{digits[:5]}-{digits[5:]}"


def _spelled(rest: str) -> str | None:
    words = rest.split(None, 1)
    if not words or not _WHOLE_CODE.fullmatch(words[0]):
        return None
    return words[0].upper().translate(_READABLE)


class InboundKind(Enum):
    """What was received."""

    MESSAGE = "inbound"
    PASSTHROUGH = "passthrough"
    INTERRUPT = "interrupt"


@dataclass(frozen=True, slots=True)
class FoundCapability:
    """A capability that a payload carried: it goes to the vault and nowhere else."""

    # The platform's name, a dot, and the platform's own term, such as `discord.interaction_token`.
    # A follow-up names the kind, and by it the platform.
    kind: str
    value: "SecretStr"
    # The provider's own expiry, in milliseconds since the epoch.
    expires_at: int


@dataclass(frozen=True, slots=True)
class InboundEvent:
    """Something that a platform received, normalised and free of capabilities."""

    platform: str
    # The bot that saw it; it says nothing about the tenant.
    bot_id: str
    # The platform's own id, by which a repeated event is recognised.
    event_id: str
    # What a gateway will get; for a passthrough, the message that it amounts to.
    event: MessageEvent
    kind: InboundKind = InboundKind.MESSAGE
    # The request of a passthrough; else None.
    forward: PassthroughForward | None = None
    # Whether a bot or webhook wrote it. It is never on the wire.
    author_is_bot: bool = False
    # Whether it mentions the bot or replies to it.
    addressed: bool = False
    # The discriminator of a webhook: its path or subdomain.
    route_key: str | None = None
    # The capabilities that it carried.
    found: tuple[FoundCapability, ...] = ()


def inbound_kind(text: str) -> InboundKind:
    """Whether a text is a message, or asks to stop the running turn."""
    return InboundKind.INTERRUPT if is_stop(text) else InboundKind.MESSAGE
