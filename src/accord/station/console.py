"""The console's plane: the pages at the station's own address.

It decides what the console sees of other planes and settings. Secrets are left out here, so that no
page can show one.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import httpx
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

from accord.authority.assembly import RunningAuthority
from accord.capabilities.file import Blobs
from accord.community.client import LocalTransport
from accord.console import Console, ConsoleParts, NodeAccess, PlaneHealth, ShownSetting, Tickets
from accord.console.answers import Answers
from accord.console.conversations import Conversations
from accord.console.pages import PAGES
from accord.console.parts import CommandRunner
from accord.console.sessions import PATH, ConsoleError, Role
from accord.console.tables import CONSOLE
from accord.console.users import Users
from accord.kernel.clock import Clock
from accord.kernel.signing import SigningKey
from accord.relay.connector.connector import Connector
from accord.relay.platforms.webchat import Admin
from accord.station import audit, logs, store
from accord.station.authority import AuthorityPlane
from accord.station.community import CommunityPlane
from accord.station.edits import EDITABLE, Applies, change_setting, choices
from accord.station.errors import SettingsError
from accord.station.history import FigureHistory
from accord.station.home import Home
from accord.station.listener import PlaneEndpoint
from accord.station.pipeline import landing_of
from accord.station.plane import Plane, PlaneContext, PlaneReport
from accord.station.relay import RelayPlane
from accord.station.settings import FILE_NAME, Settings, home_option, load, sections, variable
from accord.storage import open_store
from accord.telemetry.figures import Figure

_AWAY = PlainTextResponse("The console is not up. Try again.\n", 503)

P = TypeVar("P")


@dataclass(eq=False, repr=False)
class ConsolePlane:
    """The console of a station.

    Args:
        key: Its device key, with which the console calls its node.
    """

    name = "console"

    settings: Settings
    key: SigningKey
    clock: Clock
    address: str
    others: Sequence[Plane]
    history: FigureHistory | None = None
    _app: Starlette | None = field(init=False, default=None)
    _edits: "SettingEdits" = field(init=False)

    def __post_init__(self) -> None:
        self._edits = SettingEdits(self.settings)

    @property
    def routes(self) -> Sequence[BaseRoute]:
        """Everything below the console's path."""
        endpoint = PlaneEndpoint(self.serve)
        below = [Route(each, endpoint) for each in (PATH, f"{PATH}/{{rest:path}}")]
        return [_Front("/", _redirect_to_console, methods=["GET"]), *below]

    async def run(self, context: PlaneContext) -> None:
        """Serve until the station drains."""
        async with open_store(store.store_location(self.settings), CONSOLE) as kept:
            conversations = Conversations(kept, self.clock)
            await conversations.stop_all()
            await self._serve_console(context, Answers(conversations), Users(kept, self.clock))

    async def _serve_console(self, context: PlaneContext, answers: Answers, users: Users) -> None:
        parts = replace(self._parts(context, answers), users=users)
        console = Console(
            parts, PAGES, login_tickets(self.settings, self.clock), self.settings.console.url
        )
        self._app = console.application()
        try:
            context.ready()
            await context.draining.wait()
        finally:
            self._app = None
            console.close()
            await answers.close()
            await parts.children.stop()
            await parts.backups.stop()

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a browser."""
        await (self._app or _AWAY)(scope, receive, send)

    def _parts(self, context: PlaneContext, answers: Answers) -> ConsoleParts:
        settings = self.settings
        community = _one_of(self.others, CommunityPlane)
        relay = _one_of(self.others, RelayPlane)
        authority = _one_of(self.others, AuthorityPlane)
        home = Home(settings.home)

        def transport() -> httpx.AsyncBaseTransport | None:
            up = community is not None and community.is_up
            return LocalTransport(community.serve) if community is not None and up else None

        def connector() -> Connector | None:
            return None if relay is None else relay.connector

        def chat() -> Admin | None:
            return None if relay is None else relay.chat

        async def note(what: str, by: str, **about: str) -> None:
            record = partial(store.record_act, settings, self.clock, what, by, **about)
            await asyncio.to_thread(record)

        async def latest_acts(most: int) -> Sequence[Mapping[str, Any]]:
            return [deed.to_dict() for deed in await audit.recent(settings, most)]

        async def figures() -> Sequence[tuple[float, Sequence[Figure]]]:
            samples = await self.history.read() if self.history is not None else ()
            return [(each.at, each.figures) for each in samples]

        def running() -> RunningAuthority | None:
            return None if authority is None else authority.running

        return ConsoleParts(
            name=settings.station.name,
            address=self.address,
            home=settings.home,
            home_option=home_option(settings.home),
            language=settings.console.language,
            clock=self.clock,
            node=NodeAccess(self.key, self.clock, transport),
            blobs=Blobs(settings.home / "blobs", self.clock),
            relay=connector,
            chat=chat,
            authority=running,
            planes=lambda: [_health(each) for each in context.reports()],
            settings=self._edits.shown,
            settings_file=settings.file or settings.home / FILE_NAME,
            change_setting=self._edits.change,
            log_file=home.log_file if settings.log.file else None,
            landing=landing_of(settings),
            children=CommandRunner(self.clock),
            backups=CommandRunner(self.clock),
            note=note,
            audit=latest_acts,
            figures=figures,
            answers=answers,
        )


class _Front(Route):
    """The station's first page, for browsers only; programs get JSON there."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether a request is for it."""
        asked = Headers(scope=scope).get("accept", "") if scope["type"] == "http" else ""
        return super().matches(scope) if "text/html" in asked else (Match.NONE, {})


async def _redirect_to_console(_request: Request) -> Response:
    return RedirectResponse(f"{PATH}/", 303)


def login_tickets(settings: Settings, clock: Clock) -> Tickets:
    """Return the login tickets of a home, whether or not its station runs."""
    return Tickets(
        Home(settings.home).console,
        clock,
        session_seconds=settings.console.session_hours * 3600,
        idle_seconds=settings.console.idle_hours * 3600,
    )


def login_link(settings: Settings, clock: Clock, address: str, user: str = "") -> str:
    """Return a link that logs one browser in, once, within 15 minutes."""
    # A wildcard address includes loopback.
    here = address.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    base = settings.console.url or here
    made = login_tickets(settings, clock).link(user)
    store.record_act(settings, clock, "console.link_issued")
    return f"{base}{PATH}/login?link={made}"


async def admit_user(settings: Settings, clock: Clock, name: str, role: str | None) -> None:
    """Add a user of the console, or change the role; without a role the user must be there.

    Raises:
        ConsoleError: There is no such user, or this cannot be the name of one.
    """
    async with open_store(store.store_location(settings), CONSOLE) as kept:
        users = Users(kept, clock)
        known = await users.role(name)
        if role is None and known is None:
            raise ConsoleError(
                "there is no such user", where=name[:40], mend="add it with --role reader"
            )
        if role is None:
            return
        if known is None:
            await users.add(name, Role[role.upper()])
        else:
            await users.change(name, Role[role.upper()])
    store.record_act(
        settings, clock, "console.user_added" if known is None else "console.user_changed"
    )


class SettingEdits:
    """The settings that the station runs with, and what was changed in their file since."""

    def __init__(self, settings: Settings) -> None:
        self._running = settings
        # Options of the command line stand above the file, so it is compared with itself.
        self._begun_with = self._read() or settings
        self._turn = asyncio.Lock()

    def shown(self) -> Sequence[ShownSetting]:
        """Every setting for the page, beside what the file says by now."""
        return shown_settings(self._running, self._begun_with, self._read())

    async def change(self, section: str, key: str, text: str | None, /) -> bool:
        """Write one setting, and apply it where that is possible; whether it was."""
        async with self._turn:
            saved = await asyncio.to_thread(change_setting, self._running, section, key, text)
            if EDITABLE[section, key] is not Applies.NOW:
                return False
            value = getattr(getattr(saved, section), key)
            if (section, key) == ("log", "level"):
                logs.set_level(value)
            self._running = _with(self._running, section, key, value)
            self._begun_with = _with(self._begun_with, section, key, value)
            return True

    def _read(self) -> Settings | None:
        """What the file says now; None where it is wrong."""
        try:
            return load(self._running.home, self._running.file)
        except SettingsError:
            return None


def _with(settings: Settings, section: str, key: str, value: object) -> Settings:
    changed = getattr(settings, section).model_copy(update={key: value})
    return settings.model_copy(update={section: changed})


def shown_settings(
    settings: Settings, before: Settings | None = None, saved: Settings | None = None
) -> list[ShownSetting]:
    """Return every setting; of a secret only whether it is set.

    Args:
        before: What the file said when the station was started.
        saved: What it says now.
    """
    found = []
    for name, section in sections().items():
        chosen = getattr(settings, name)
        for key, declared in section.model_fields.items():
            value = getattr(chosen, key)
            written = None if saved is None else getattr(getattr(saved, name), key)
            is_saved = (before is not None and saved is not None) and written != getattr(
                getattr(before, name), key
            )
            applies = EDITABLE.get((name, key))
            words = choices(name, key)
            is_number = declared.annotation in (int, float)
            found.append(
                ShownSetting(
                    name,
                    key,
                    _text(value),
                    declared.description or "",
                    value == declared.default,
                    variable(name, key),
                    default=_text(declared.default),
                    applies="" if applies is None else applies.value,
                    kind="choice" if words else "number" if is_number else "text",
                    choices=words,
                    saved=_text(written) if is_saved else None,
                )
            )
    return found


def _text(value: object) -> str:
    if isinstance(value, SecretStr):
        return "(set, and not shown)" if value.get_secret_value() else ""
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _health(report: PlaneReport) -> PlaneHealth:
    return PlaneHealth(
        report.name,
        report.state.value,
        report.is_well,
        report.reason,
        report.restarts,
        tuple(
            PlaneHealth(each.name, each.state, each.is_well, each.reason) for each in report.parts
        ),
    )


def _one_of(planes: Sequence[Plane], kind: type[P]) -> P | None:
    return next((each for each in planes if isinstance(each, kind)), None)
