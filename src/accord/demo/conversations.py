"""The demo's visitors of the web chat, over HTTP like a browser.

Their messages have three outcomes: the concierge answers, nobody receives it because its author is
not linked, or it becomes a dead letter of an agent that is revoked.
"""

import asyncio
from pathlib import Path
from typing import Any, Final

import httpx

from accord.demo.story import Story, StoryVisit
from accord.kernel.clock import Clock
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.webchat import Admin, open_admin
from accord.station.agents import CONCIERGE, linked_users, open_agent
from accord.station.relay import control_settings, operate_relay, webchat_settings
from accord.station.settings import Settings
from accord.station.store import store_location
from accord.web import responses

DESK: Final = "demo-yard"
"""The name of the unattended agent and its space."""

LOBBY: Final = "lobby"
"""The story's name for the concierge's space, whatever the settings call it."""

_STEP_SECONDS: Final = 0.2
_SECONDS: Final = 30.0


class Conversations:
    """The web chat of a station, as its visitors use it."""

    def __init__(self, story: Story, settings: Settings, address: str, clock: Clock) -> None:
        self._story = story
        self._settings = settings
        self._address = address
        self._clock = clock

    async def ask_the_concierge(self) -> None:
        """Ask questions that the documents answer."""
        for visit in self._visits(LOBBY):
            space = self._settings.concierge.space
            await self._say(visit, space, self._settings.home / CONCIERGE)

    async def leave_a_dead_letter(self) -> None:
        """Write to an agent without a gateway, and revoke it."""
        async with open_agent(self._settings, self._clock, DESK) as guest:
            for visit in self._visits(DESK):
                if visit.linked:
                    await self._say(visit, DESK, guest.folder)
        async with operate_relay(self._settings, self._clock, "demo") as connector:
            await connector.control.revoke(DESK)

    async def speak_to_nobody(self) -> None:
        """Write where nobody receives it."""
        for visit in self._visits(DESK):
            if not visit.linked:
                await self._say(visit, DESK, None)

    async def _until_heard(self, agent: Path, user: str) -> None:
        """Wait until the agent of this folder is linked to a user."""
        while user not in linked_users(agent):  # noqa: ASYNC110 - a file tells of it
            await asyncio.sleep(_STEP_SECONDS)
        # The link was made by another process; the connector notices it after this time.
        await asyncio.sleep(control_settings(self._settings).freshness_seconds)

    def _visits(self, space: str) -> list[StoryVisit]:
        return [each for each in self._story.visits if each.space == space]

    async def _say(self, visit: StoryVisit, space: str, agent: Path | None) -> None:
        """Write a visit's messages in a space, once the agent of a folder is linked to it."""
        chosen = webchat_settings(self._settings)
        async with (
            open_admin(store_location(self._settings), self._clock, chosen) as admin,
            responses.bounded_client(
                responses.SMALL,
                base_url=f"{self._address}/chat/api/",
                headers={"x-accord-chat": "1"},
                timeout=_SECONDS,
                trust_env=False,
            ) as http,
        ):
            found = next(each for each in await admin.spaces() if each.name == space)
            user = await _enter(http, admin, found.id, visit.visitor)
            if agent is not None:
                await self._until_heard(agent, user)
            overview = await _ask(http, "GET", "me")
            channel = next(
                channel["id"]
                for each in overview["spaces"]
                for channel in each["channels"]
                if each["id"] == found.id
            )
            for number, text in enumerate(visit.said):
                said = {"text": text, "key": f"demo-{space}-{number}"}
                await _ask(http, "POST", f"chats/{channel}/messages", said)


async def _enter(http: httpx.AsyncClient, admin: Admin, space: str, name: str) -> str:
    """Join a space under a name, or log in again; return the user's id."""
    known = next((each for each in await admin.users() if each.name == name), None)
    if known is not None:
        await _ask(http, "POST", "login", {"key": await admin.new_login_key(known.id)})
        if space in known.spaces:
            return known.id
    invite = (await admin.invite(space)).url.partition("#invite=")[2]
    joining = {"invite": invite} if known is not None else {"invite": invite, "name": name}
    return str((await _ask(http, "POST", "join", joining))["me"]["id"])


async def _ask(http: httpx.AsyncClient, method: str, path: str, body: Any = None) -> Any:
    try:
        answer = await http.request(method, path, json=body)
        if not answer.is_success:
            told = answer.json()
            raise RelayError(Code(told["error"]), told["message"], where=path)
    except httpx.HTTPError as error:
        raise RelayError(Code.UNAVAILABLE, f"the web chat does not answer ({error})") from error
    return answer.json()
