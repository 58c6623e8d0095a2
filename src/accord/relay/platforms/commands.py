"""The command menu of a bot: whose commands people are shown, and how they are published.

A bot has one menu, which all its agents share, so no gateway changes it without the operator's
word.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, Self

import structlog

from accord.kernel import canonical
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.settings import CommandSettings

OPERATOR: Final = ""
"""Stands for the operator's own commands among instances; it sorts before every name."""
_MOST_BYTES: Final = 1024 * 1024
_MOST_INSTANCES: Final = 1000
_log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CommandMenu:
    """What the operator has chosen: own commands, and the instances whose commands are added."""

    own: Sequence[Any] = ()
    instances: frozenset[str] = frozenset()

    @classmethod
    def load(cls, settings: CommandSettings) -> Self:
        """Read the chosen file.

        Raises:
            RelayError: It cannot be read, or holds no list of objects.
        """
        if settings.commands == "off":
            return cls()
        own = _read(settings.commands_file) if settings.commands_file else ()
        named = settings.commands_from if settings.commands == "union" else ()
        return cls(own, frozenset(named))

    def admits(self, instance: str) -> bool:
        """Whether the commands of an instance's gateway are shown."""
        return instance in self.instances


def _read(file: str) -> list[Any]:
    try:
        with Path(file).expanduser().open("rb") as opened:
            found = canonical.decode(opened.read(_MOST_BYTES + 1), max_bytes=_MOST_BYTES)
    except OSError as error:
        raise _bad(f"the file of commands cannot be read ({error.strerror})") from None
    except canonical.CanonicalError as error:
        raise _bad(f"the file of commands is not strict JSON: {error.what}") from None
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise _bad("the file of commands should hold a list of objects")
    return found


def _bad(what: str) -> RelayError:
    return RelayError(
        Code.BAD_REQUEST,
        what,
        where="commands_file",
        mend='write a list such as [{"name": "ask", "description": "Ask"}]',
    )


class ShownMenu(Protocol):
    """The menu that a service shows for a bot."""

    def read(self, manifest: Any) -> Any:
        """The commands of a manifest that the service takes; None if it is no manifest."""

    def merge(self, offers: Mapping[str, Any]) -> list[Any]:
        """The commands of all instances as one menu; of equal names the first instance's."""

    async def put(self, wanted: list[Any]) -> bool:
        """Replace the menu; False if it should be tried again."""


@dataclass(eq=False)
class CommandPublisher:
    """Publishes the commands of all instances in the background, a little after a change."""

    menu: CommandMenu
    settings: CommandSettings
    shown: ShownMenu
    _offers: dict[str, Any] = field(default_factory=dict)
    _published: list[Any] | None = None
    _task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Start with the operator's own commands, whatever was published before.

        Another process may have published something else since, so an equal menu is sent again.
        """
        was_published = bool(self._published)
        self._offers, self._published = {}, None
        if self.menu.own:
            self._offers[OPERATOR] = self.shown.read(list(self.menu.own))
        if self.menu.own or was_published:
            self._publish_soon()

    def offer(self, instance: str, manifest: Any) -> None:
        """Replace the commands of an instance, if the operator allows it."""
        if not self.menu.admits(instance):
            return
        commands = self.shown.read(manifest)
        if commands is None:
            _log.warning("a command manifest is malformed", instance=instance)
        elif instance not in self._offers and len(self._offers) >= _MOST_INSTANCES:
            _log.warning("too many instances offer commands", instance=instance)
        else:
            self._offers[instance] = commands
            self._publish_soon()

    async def close(self) -> None:
        """Stop publishing."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _publish_soon(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._publish())

    async def _publish(self) -> None:
        first = pause = self.settings.commands_pause_seconds
        await asyncio.sleep(self.settings.commands_settle_seconds)
        while (wanted := self.shown.merge(self._offers)) != self._published:
            if await self.shown.put(wanted):
                self._published, pause = wanted, first
            else:
                await asyncio.sleep(pause)
                pause = min(2 * pause, self.settings.commands_longest_pause_seconds)
