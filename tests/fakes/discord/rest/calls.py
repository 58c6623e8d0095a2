"""A call on the API: how a path finds its function, what is read of a form, and refusals."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.discord.application import Application
from tests.fakes.discord.channels import Channel
from tests.fakes.discord.gateway import Gateway
from tests.fakes.discord.guilds import Guild
from tests.fakes.discord.interactions import Interactions
from tests.fakes.discord.world import Json, Permission, World, channel_permissions, may_view


class Refused(Exception):  # noqa: N818 - an answer, not a failure of the fake
    """A call is answered with an error.

    Args:
        status: Of HTTP.
        code: The service's own.
        message: For people.
        errors: What is wrong with which member of a form.
    """

    def __init__(self, status: int, code: int, message: str, errors: Json | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.errors = errors

    def json(self) -> Json:
        """The error object."""
        made: Json = {"message": self.message, "code": self.code}
        return made if self.errors is None else {**made, "errors": self.errors}


_UNKNOWN = {
    "channel": (10003, "Unknown Channel"),
    "guild": (10004, "Unknown Guild"),
    "member": (10007, "Unknown Member"),
    "message": (10008, "Unknown Message"),
    "role": (10011, "Unknown Role"),
    "user": (10013, "Unknown User"),
    "webhook": (10015, "Unknown Webhook"),
    "interaction": (10062, "Unknown interaction"),
    "application": (10002, "Unknown Application"),
}


def unknown(what: str) -> Refused:
    """There is no such thing."""
    return Refused(404, *_UNKNOWN[what])


def unauthorized() -> Refused:
    """The token is missing or wrong."""
    return Refused(401, 0, "401: Unauthorized")


def missing_access() -> Refused:
    """The bot does not see that."""
    return Refused(403, 50001, "Missing Access")


def missing_permissions() -> Refused:
    """The bot sees that, and may not do this there."""
    return Refused(403, 50013, "Missing Permissions")


def bad_form(member: str, code: str, message: str) -> Refused:
    """One member of a form is wrong."""
    found: Json = {"_errors": [{"code": code, "message": message}]}
    for name in reversed(member.split(".")):
        found = {name: found}
    return Refused(400, 50035, "Invalid Form Body", found)


_SNOWFLAKE = re.compile(r"\d{1,20}", re.ASCII)
_FORMS: Mapping[type, tuple[str, str]] = {
    str: ("BASE_TYPE_STRING", "Could not interpret value as string."),
    bool: ("BASE_TYPE_BOOLEAN", "Must be either true or false."),
    dict: ("MODEL_TYPE_CONVERT", "Only dictionaries may be used in a ModelType"),
    list: ("LIST_TYPE_CONVERT", "Only iterables may be used in a ListType"),
    int: ("NUMBER_TYPE_COERCE", "Value is not int."),
}


@dataclass(eq=False, slots=True)
class Service:
    """Everything that a call can reach."""

    world: World
    application: Application
    gateway: Gateway
    interactions: Interactions
    typed: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Call:
    """A request that found its route."""

    service: Service
    params: Mapping[str, str]
    query: Mapping[str, str]
    body: Any = None

    @property
    def world(self) -> World:
        """The world that it is about."""
        return self.service.world

    @property
    def bot_id(self) -> str:
        """Who calls."""
        return self.world.bot_id

    def id(self, name: str) -> str:
        """A snowflake of the path."""
        return snowflake(self.params[name], name)

    def form(self) -> Json:
        """The body, which must be an object."""
        if not isinstance(self.body, dict):
            raise bad_form("_", *_FORMS[dict])
        return self.body

    def member(self, name: str, kind: type, default: Any = None) -> Any:
        """A member of the form with its kind checked; absent and null are the same."""
        return typed(self.form().get(name), name, kind, default)

    def number(self, name: str, default: int, low: int, high: int) -> int:
        """A whole number of the query."""
        text = self.query.get(name)
        if text is None:
            return default
        if not _SNOWFLAKE.fullmatch(text):
            raise bad_form(name, "NUMBER_TYPE_COERCE", f'Value "{text[:40]}" is not int.')
        value = int(text)
        if value < low:
            raise bad_form(
                name, "NUMBER_TYPE_MIN", f"int value should be greater than or equal to {low}."
            )
        if value > high:
            raise bad_form(
                name, "NUMBER_TYPE_MAX", f"int value should be less than or equal to {high}."
            )
        return value

    def channel(self, needed: Permission = Permission.NONE) -> Channel:
        """The channel of the path, if the bot sees it and has what is needed there."""
        channel = self.world.channels.get(self.id("channel_id"))
        if channel is None:
            raise unknown("channel")
        if not may_view(channel, self.bot_id):
            raise missing_access()
        if needed not in channel_permissions(channel, self.bot_id):
            raise missing_permissions()
        return channel

    def guild(self) -> Guild:
        """The guild of the path, if the bot is in it."""
        guild = self.world.guilds.get(self.id("guild_id"))
        if guild is None:
            raise unknown("guild")
        if self.bot_id not in guild.members:
            raise missing_access()
        return guild


@dataclass(frozen=True, slots=True)
class Route:
    """A way in.

    Attributes:
        template: The path, with the names of its parameters in braces.
        is_open: Whether it is called without the bot's token.
    """

    method: str
    template: str
    answer: Callable[[Call], tuple[int, Any]]
    is_open: bool = False

    def match(self, method: str, path: str) -> Mapping[str, str] | None:
        """The parameters of a path that is this route's; None for another's."""
        asked, own = path.split("/"), self.template.split("/")
        if method != self.method or len(asked) != len(own):
            return None
        params: dict[str, str] = {}
        for theirs, ours in zip(asked, own, strict=True):
            if ours.startswith("{"):
                params[ours[1:-1]] = theirs
            elif theirs != ours:
                return None
        return params


def snowflake(value: object, name: str) -> str:
    """An id, given as text or number."""
    text = str(value) if isinstance(value, (str, int)) else ""
    if not _SNOWFLAKE.fullmatch(text):
        raise bad_form(name, "NUMBER_TYPE_COERCE", f'Value "{text[:40]}" is not snowflake.')
    return text


def typed(value: Any, name: str, kind: type, default: Any = None) -> Any:
    """A member of a form with its kind checked."""
    if value is None:
        return default
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise bad_form(name, *_FORMS[kind])
    return value
