"""The commands that Telegram shows when somebody types a slash.

Owns the reading of what agents offer, of which nothing is sure, and that Telegram hears of it. One
bot has one list: that of all the agents who offer some through this process.
"""

import asyncio
import re
from collections.abc import Iterator
from typing import Any, Final

import structlog

from accord.relay.errors import RelayError
from accord.relay.platforms.telegram.api import BotApi

_MOST: Final = 100
_MOST_INSTANCES: Final = 1000
_NAME: Final = re.compile(r"[a-z0-9_]{1,32}")
_LONGEST: Final = 256
_DELAYS: Final = (1.0, 5.0, 30.0, 300.0)
_log = structlog.stdlib.get_logger(__name__)


def read_manifest(manifest: Any) -> dict[str, str]:
    """The commands of a manifest, each with its description; what cannot be one is left out.

    A manifest is a list of objects with `name` and `description`, or an object whose `commands`
    are such a list.
    """
    given = manifest.get("commands") if isinstance(manifest, dict) else manifest
    return dict(_commands(given[: 10 * _MOST])) if isinstance(given, list) else {}


def _commands(given: list[Any]) -> Iterator[tuple[str, str]]:
    for each in given:
        name = each.get("name") if isinstance(each, dict) else None
        if not isinstance(name, str) or len(name) > _LONGEST:
            continue
        name = name.removeprefix("/").lower().replace("-", "_")
        about = each.get("description")
        about = about.strip() if isinstance(about, str) else ""
        if _NAME.fullmatch(name):
            yield name, about[:_LONGEST].encode("utf-8", "replace").decode() or name


class Commands:
    """What Telegram is told of commands.

    Args:
        api: Who tells it.
    """

    def __init__(self, api: BotApi) -> None:
        self._api = api
        self._offers: dict[str, dict[str, str]] = {}
        self._news = asyncio.Event()

    def offer(self, instance: str, manifest: Any) -> None:
        """Show an instance's commands, soon, in place of what it offered before."""
        if instance in self._offers or len(self._offers) < _MOST_INSTANCES:
            self._offers[instance] = read_manifest(manifest)
            self._news.set()

    async def run(self) -> None:
        """Tell Telegram of news, until cancelled."""
        told: list[dict[str, str]] | None = None
        while True:
            await self._news.wait()
            self._news.clear()
            for delay in _DELAYS:
                await asyncio.sleep(delay)  # for others that are offered at the same time
                wanted = self._list()
                if wanted == told or await self._tell(wanted):
                    told = wanted
                    break

    def _list(self) -> list[dict[str, str]]:
        merged: dict[str, str] = {}
        for offered in self._offers.values():
            merged = offered | merged
        names = sorted(merged)[:_MOST]
        return [{"command": name, "description": merged[name]} for name in names]

    async def _tell(self, wanted: list[dict[str, str]]) -> bool:
        try:
            answer = await self._api.call("setMyCommands", {"commands": wanted})
        except (RelayError, TimeoutError) as error:
            reason = str(error)
        else:
            if answer.ok:
                return True
            reason = answer.trouble
        _log.warning("commands are not shown", platform="telegram", reason=reason)
        return False
