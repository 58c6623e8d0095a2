"""The chat platforms of a station: one bot for each table of the settings.

Owns which tables there are and what opens each. A bot that cannot be opened is told as a part in
trouble; the others go on.
"""

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final

import structlog

from accord.kernel.clock import Clock
from accord.kernel.errors import AccordError
from accord.kernel.section import Section
from accord.relay.connector.platform import Platform
from accord.station.errors import StationError
from accord.station.plane import PartReport
from accord.station.settings import Settings

_log = structlog.stdlib.get_logger(__name__)

Opener = Callable[[Any, Clock, str], AbstractAsyncContextManager[Platform]]

NAMES: Final = ("telegram", "discord", "matrix", "sms", "wecom", "webhook")
"""The platforms: `[[relay.<name>]]` is a bot, which `open_<name>` of that platform opens."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The bots of a station.

    Attributes:
        platforms: Those that could be opened.
        failed: Why the others could not.
    """

    platforms: list[Platform] = field(default_factory=list)
    failed: list[PartReport] = field(default_factory=list)


@contextlib.asynccontextmanager
async def open_platforms(settings: Settings, clock: Clock) -> AsyncIterator[Opened]:
    """Open the bot of each table; no service is asked anything yet."""
    opened = Opened()
    async with AsyncExitStack() as stack:
        for name in NAMES:
            for number, table in enumerate(getattr(settings.relay, name), 1):
                try:
                    platform = await stack.enter_async_context(
                        _opener(name)(_at_home(table, settings), clock, settings.relay.url)
                    )
                    _refuse_twin(platform, opened)
                except AccordError as error:
                    _log.error("a platform cannot be opened", platform=name, reason=str(error))
                    seat = f"{name} {number}"
                    opened.failed.append(PartReport(seat, "troubled", str(error), is_well=False))
                else:
                    opened.platforms.append(platform)
        yield opened


def _opener(name: str) -> Opener:
    """What opens a bot; only a platform that is used is loaded."""
    opener: Opener = getattr(import_module(f"accord.relay.platforms.{name}"), f"open_{name}")
    return opener


def _refuse_twin(platform: Platform, opened: Opened) -> None:
    seats = {(each.name, each.bot_id) for each in opened.platforms}
    if (platform.name, platform.bot_id) in seats:
        raise StationError(
            f"the bot {platform.bot_id} is set up twice",
            where=f"[[relay.{platform.name}]]",
            mend="keep one of the tables",
        )


def _at_home(table: Section, settings: Settings) -> Section:
    """The table with every file that it names, from the home on."""
    files = {
        name: str(settings.home / value)
        for name in type(table).model_fields
        if name.endswith("_file") and (value := getattr(table, name)) and not value.startswith("~")
    }
    return table.model_copy(update=files)
