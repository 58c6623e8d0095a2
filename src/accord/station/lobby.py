"""A lobby: a space of the web chat whose people are linked to an agent as they join.

Owns who is linked by the operator's word. The agent's tenant is its own, so it hears these people
in this space and in direct messages, and nowhere else unless they link their accounts there
themselves. The concierge has one, and so has every agent that is let in on this machine.
"""

import asyncio
import re
from pathlib import Path
from typing import Final

import structlog

from accord.kernel.errors import AccordError
from accord.relay.connector.control import Control
from accord.relay.gate.facts import PrincipalPolicy
from accord.relay.platforms.webchat import Admin, Channel

INSTANCE: Final = "concierge"
"""The concierge's instance, its gateway and its tenant are called so."""
PLATFORM: Final = "webchat"

# Somebody who has just joined needs longer to write the first words.
_LOOK_SECONDS: Final = 1.0
_LINKED: Final = "linked"
# What every lobby was called once; one that is there is kept.
_FORMER: Final = "lobby"
_LONGEST: Final = 32
_log = structlog.stdlib.get_logger(__name__)


async def open_lobby(
    admin: Admin, control: Control, instance: str, space: str, folder: Path
) -> "Lobby":
    """The lobby of an agent in the space of this name, made where there is none.

    Args:
        admin: The web chat's operator.
        control: The relay's.
        instance: The agent, which is alone in its tenant of the same name.
        space: What the space is called.
        folder: Where it is kept who was linked.

    Raises:
        RelayError: The space belongs to another tenant's agents.
    """
    found = next((each for each in await admin.spaces() if each.name == space), None)
    found = found or await admin.create_space(space)
    await control.route(instance, PLATFORM, found.id)
    own = channel_of(instance)
    there = {each.name: each for each in await admin.channels(found.id)}
    channel = there.get(own) or there.get(_FORMER) or await admin.create_channel(found.id, own)
    return Lobby(admin, control, instance, channel, folder)


def channel_of(instance: str) -> str:
    """What the lobby of an agent is called: like the agent, as far as a channel's name can be."""
    return re.sub("[^a-z0-9_-]", "-", instance.lower())[:_LONGEST]


def linked(folder: Path) -> set[str]:
    """The users of the web chat whom the lobby of the concierge in this folder has linked."""
    file = folder / _LINKED
    return set(file.read_text().split()) if file.exists() else set()


class Lobby:
    """A channel in which everybody who can write may talk to an agent.

    The relay delivers nothing of somebody who has linked no account. So whoever joins the space is
    linked, once; an `/unlink` is for good.

    Attributes:
        admin: The web chat's operator.
        channel: The channel.
    """

    def __init__(
        self, admin: Admin, control: Control, instance: str, channel: Channel, folder: Path
    ) -> None:
        self.admin = admin
        self.channel = channel
        self._control = control
        self._instance = instance
        self._file = folder / _LINKED
        self._linked = linked(folder)

    async def look_after(self) -> None:
        """Link people as they join, until cancelled."""
        told = ""
        while True:
            try:
                await self.link_new()
            except AccordError as error:
                if told != str(error):
                    _log.error("somebody in the lobby could not be linked", reason=str(error))
                told = str(error)
            await asyncio.sleep(_LOOK_SECONDS)

    async def link_new(self) -> None:
        """Link whoever has joined the space since.

        Raises:
            AccordError: The store failed, or the instance was revoked.
        """
        for user in await self.admin.users():
            if user.id in self._linked or user.is_removed:
                continue
            if self.channel.space_id not in user.spaces:
                continue
            await self._control.bind(self._instance, PLATFORM, user.id)
            await self._hold(user.id)
            with self._file.open("a") as file:
                file.write(f"{user.id}\n")
            self._linked.add(user.id)

    async def _hold(self, owner: str) -> None:
        """Hold the channel, for those whose accounts are linked to others of the tenant only."""
        space, channel = self.channel.space_id, self.channel.id
        await self._control.grant(self._instance, PLATFORM, space, channel, owner)
        caller = await self._control.principal(self._instance)
        await self._control.set_principal(caller, PLATFORM, PrincipalPolicy.ANY)
