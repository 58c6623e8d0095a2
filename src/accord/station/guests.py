"""An agent on this machine, let in by whoever runs the station: enrolled, and with a lobby.

Owns the enrolment by the operator's own hand (a token that is made and spent at once, over HTTP as
any other) and where such an agent keeps what it needs: a folder of the home. It runs no agent.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from accord.kernel.clock import Clock
from accord.relay.connector.control import Control
from accord.relay.errors import Code, RelayError
from accord.relay.gateway.enrolment import FILE_NAME, Credentials, enrol, load_credentials
from accord.relay.platforms.webchat import open_admin
from accord.station.errors import StationError
from accord.station.home import Home, holder
from accord.station.lobby import open_lobby
from accord.station.relay import operated, webchat_settings
from accord.station.settings import Settings
from accord.station.store import place

_TOKEN_SECONDS: Final = 60
_STEP_SECONDS: Final = 0.1
# A station says where it is before its planes are up.
_PATIENCE_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Guest:
    """An agent that was let in.

    Attributes:
        credentials: By which its gateway dials.
        address: Where the station is now.
        folder: Where the agent keeps what it has taken.
        invite: A link by which one person joins its space; None without a web chat.
    """

    credentials: Credentials
    address: str
    folder: Path
    invite: str | None


async def relay_is_up(address: str, draining: asyncio.Event) -> bool:
    """Wait for the relay plane of a station; false when the station drains before."""
    async with httpx.AsyncClient(trust_env=False, timeout=5.0) as http:
        while not draining.is_set():
            with suppress(httpx.HTTPError):
                answer = await http.get(f"{address}/relay/enroll")
                if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                    return True
            await asyncio.sleep(_STEP_SECONDS)
    return False


async def admitted(
    control: Control, address: str, instance: str, folder: Path
) -> Credentials | None:
    """What an agent dials with, got by enrolling where there is nothing yet; None if revoked.

    Raises:
        RelayError: The connector does not answer, or the credentials cannot be kept.
    """
    file = folder / FILE_NAME
    known = {each.instance: each for each in await control.instances()}.get(instance)
    if known is not None and (known.barred or known.suspended):
        return None
    if known is not None and known.live and file.exists():
        return load_credentials(file)
    made = await control.mint_token(instance, instance, name=instance, seconds=_TOKEN_SECONDS)
    return await enrol(address, made.token, instance, file, replace=True)


@asynccontextmanager
async def welcomed(settings: Settings, clock: Clock, name: str) -> AsyncIterator[Guest]:
    """Let an agent in by a name, and link whoever joins its space until the block ends.

    Args:
        settings: Those of the home whose station runs.
        clock: The time.
        name: What the agent, its tenant and its space are called; it is a folder's name, too.

    Raises:
        StationError: No station runs there, or its relay does not come up.
        RelayError: The agent was revoked, or another one has that name.
    """
    held = holder(Home(settings.home))
    if held is None:
        raise StationError(
            "no station runs here", where=str(settings.home), mend="start one with `accord up`"
        )
    try:
        await asyncio.wait_for(relay_is_up(held.address, asyncio.Event()), _PATIENCE_SECONDS)
    except TimeoutError:
        raise StationError(
            "the relay of this station is not up", where=held.address, mend="see `accord status`"
        ) from None
    folder = settings.home / "agents" / name
    async with AsyncExitStack() as opened:
        connector = await opened.enter_async_context(operated(settings, clock, name))
        control = connector.control
        await _demand_free(control, name, folder)
        known = await admitted(control, held.address, name, folder)
        if known is None:
            raise RelayError(
                Code.FORBIDDEN,
                "the operator has revoked this agent, or switched off its tenant",
                where=name,
                mend=f"`accord relay pardon {name}`, or choose another name",
            )
        if not settings.relay.webchat:
            yield Guest(known, held.address, folder, None)
            return
        admin = await opened.enter_async_context(
            open_admin(place(settings), clock, webchat_settings(settings))
        )
        lobby = await open_lobby(admin, control, name, name, folder)
        invite = (await admin.invite(lobby.channel.space_id)).url
        if invite.startswith("/"):
            invite = f"{held.address}{invite}"
        looking = asyncio.create_task(lobby.look_after(), name="lobby")
        try:
            yield Guest(known, held.address, folder, invite)
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)


async def _demand_free(control: Control, name: str, folder: Path) -> None:
    """Take no other agent's place: enrolling by its name would end its access."""
    others = [each for each in await control.instances() if each.live and each.instance == name]
    if others and not (folder / FILE_NAME).exists():
        raise RelayError(
            Code.CONFLICT,
            "another agent is enrolled by this name",
            where=name,
            mend=f"choose another name, or end it with `accord relay revoke {name}`",
        )
