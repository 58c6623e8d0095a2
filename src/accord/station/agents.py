"""Agents on this machine: enrolment without a token by hand, and a web chat space for each.

An agent enrols over HTTP like any other, with a token that is made and used at once, and keeps its
credentials in a folder of the home. Whoever joins its space is linked to it, once; an `/unlink` is
not undone.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import structlog

from accord.kernel.clock import Clock
from accord.kernel.errors import AccordError
from accord.relay.connector.manage import Control
from accord.relay.errors import Code, RelayError
from accord.relay.gateway.enrolment import (
    CREDENTIALS_FILE,
    GatewayCredentials,
    enrol,
    load_credentials,
)
from accord.relay.platforms.webchat import Admin, Channel, open_admin
from accord.relay.rules.gate import PrincipalPolicy
from accord.station.errors import StationError
from accord.station.home import Home, home_holder
from accord.station.relay import operate_relay, webchat_settings
from accord.station.settings import Settings
from accord.station.store import store_location
from accord.web import outgoing

CONCIERGE: Final = "concierge"
"""The name of the concierge's instance, gateway and tenant."""
WEBCHAT: Final = "webchat"

# Shorter than it takes somebody who has just joined to write a message.
_LOOK_SECONDS: Final = 1.0
_LINKED: Final = "linked"
# The former name of every lobby; an existing one is kept.
_FORMER: Final = "lobby"
_LONGEST: Final = 32
_log = structlog.stdlib.get_logger(__name__)


async def open_space(
    admin: Admin, control: Control, instance: str, space: str, folder: Path
) -> "AgentSpace":
    """Open the lobby of an agent in the space of this name; create what is missing.

    Args:
        instance: The agent, which is alone in its tenant of the same name.

    Raises:
        RelayError: The space belongs to another tenant's agents.
    """
    found = next((each for each in await admin.spaces() if each.name == space), None)
    found = found or await admin.create_space(space)
    await control.route(instance, WEBCHAT, found.id)
    own = channel_name(instance)
    there = {each.name: each for each in await admin.channels(found.id)}
    channel = there.get(own) or there.get(_FORMER) or await admin.create_channel(found.id, own)
    return AgentSpace(admin, control, instance, channel, folder)


def channel_name(instance: str) -> str:
    """Return the name of an agent's lobby: the agent's name as a valid channel name."""
    return re.sub("[^a-z0-9_-]", "-", instance.lower())[:_LONGEST]


def linked_users(folder: Path) -> set[str]:
    """Return the web chat users whom the lobby of this folder has linked."""
    file = folder / _LINKED
    return set(file.read_text().split()) if file.exists() else set()


class AgentSpace:
    """A channel in which everybody who can write may talk to an agent.

    The relay delivers no messages of people without a linked account, so whoever joins the space is
    linked, once; an `/unlink` is not undone.
    """

    def __init__(
        self, admin: Admin, control: Control, instance: str, channel: Channel, folder: Path
    ) -> None:
        self.admin = admin
        self.channel = channel
        self._control = control
        self._instance = instance
        self._file = folder / _LINKED
        self._linked = linked_users(folder)

    async def run(self) -> None:
        """Link people as they join, until cancelled."""
        told = ""
        while True:
            try:
                await self.link_new()
            except AccordError as error:
                if told != str(error):
                    _log.error("a person in the lobby could not be linked", reason=str(error))
                told = str(error)
            await asyncio.sleep(_LOOK_SECONDS)

    async def link_new(self) -> None:
        """Link whoever has joined the space since the last call."""
        for user in await self.admin.users():
            if user.id in self._linked or user.is_removed:
                continue
            if self.channel.space_id not in user.spaces:
                continue
            await self._control.bind(self._instance, WEBCHAT, user.id)
            await self._hold(user.id)
            with self._file.open("a") as file:
                file.write(f"{user.id}\n")
            self._linked.add(user.id)

    async def _hold(self, owner: str) -> None:
        """Grant the channel, also for accounts linked to other agents of the tenant."""
        space, channel = self.channel.space_id, self.channel.id
        await self._control.grant(self._instance, WEBCHAT, space, channel, owner)
        caller = await self._control.principal(self._instance)
        await self._control.set_principal(caller, WEBCHAT, PrincipalPolicy.ANY)


_TOKEN_SECONDS: Final = 60
_STEP_SECONDS: Final = 0.1
# A station announces its address before its planes are up.
_PATIENCE_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class LocalAgent:
    """An enrolled agent.

    Attributes:
        invite: A link by which one person joins its space; None without a web chat.
    """

    credentials: GatewayCredentials
    address: str
    folder: Path
    invite: str | None


async def wait_for_relay(address: str, draining: asyncio.Event) -> bool:
    """Wait for the relay plane of a station; False if the station drains before."""
    async with outgoing.bounded_client(outgoing.SMALL, trust_env=False, timeout=5.0) as http:
        while not draining.is_set():
            with suppress(httpx.HTTPError):
                answer = await http.get(f"{address}/relay/enroll")
                if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                    return True
            await asyncio.sleep(_STEP_SECONDS)
    return False


async def admit_agent(
    control: Control, address: str, instance: str, folder: Path
) -> GatewayCredentials | None:
    """Return an agent's credentials, enrolling it if needed; None if it is revoked.

    Raises:
        RelayError: The connector does not answer, or the credentials cannot be stored.
    """
    file = folder / CREDENTIALS_FILE
    known = {each.instance: each for each in await control.instances()}.get(instance)
    if known is not None and (known.barred or known.suspended):
        return None
    if known is not None and known.live and file.exists():
        return load_credentials(file)
    made = await control.mint_token(instance, instance, name=instance, seconds=_TOKEN_SECONDS)
    return await enrol(address, made.token, instance, file, replace=True)


@asynccontextmanager
async def open_agent(settings: Settings, clock: Clock, name: str) -> AsyncIterator[LocalAgent]:
    """Enrol an agent, and link whoever joins its space until the end of the block.

    Args:
        name: The name of the agent, its tenant, its space and its folder.

    Raises:
        StationError: No station runs there, or its relay does not come up.
        RelayError: The agent was revoked, or another one has that name.
    """
    held = home_holder(Home(settings.home))
    if held is None:
        raise StationError(
            "no station runs here", where=str(settings.home), mend="start one with `accord up`"
        )
    try:
        await asyncio.wait_for(wait_for_relay(held.address, asyncio.Event()), _PATIENCE_SECONDS)
    except TimeoutError:
        raise StationError(
            "the relay of this station is not up", where=held.address, mend="see `accord status`"
        ) from None
    folder = settings.home / "agents" / name
    async with AsyncExitStack() as opened:
        connector = await opened.enter_async_context(operate_relay(settings, clock, name))
        control = connector.control
        await _require_free_name(control, name, folder)
        known = await admit_agent(control, held.address, name, folder)
        if known is None:
            raise RelayError(
                Code.FORBIDDEN,
                "the operator has revoked this agent, or switched off its tenant",
                where=name,
                mend=f"`accord relay pardon {name}`, or choose another name",
            )
        if not settings.relay.webchat:
            yield LocalAgent(known, held.address, folder, None)
            return
        admin = await opened.enter_async_context(
            open_admin(store_location(settings), clock, webchat_settings(settings))
        )
        lobby = await open_space(admin, control, name, name, folder)
        invite = (await admin.invite(lobby.channel.space_id)).url
        if invite.startswith("/"):
            invite = f"{held.address}{invite}"
        looking = asyncio.create_task(lobby.run(), name="lobby")
        try:
            yield LocalAgent(known, held.address, folder, invite)
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)


async def _require_free_name(control: Control, name: str, folder: Path) -> None:
    """Refuse the name of another agent: enrolling by it would end that agent's access."""
    others = [each for each in await control.instances() if each.live and each.instance == name]
    if others and not (folder / CREDENTIALS_FILE).exists():
        raise RelayError(
            Code.CONFLICT,
            "another agent is enrolled by this name",
            where=name,
            mend=f"choose another name, or end it with `accord relay revoke {name}`",
        )
