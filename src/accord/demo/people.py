"""The people of the demo: neighbours with a node each, and visitors of the web chat.

A neighbour has a key and a log in the folder of the demo, joins by an invite and runs while the
story is set up. Visitors use the web chat over HTTP like a browser; their messages are answered by
the concierge, reach nobody because the author is not linked, or become dead letters. Every step is
idempotent.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from accord.capabilities.file import Blobs
from accord.community.client import Client, LocalTransport
from accord.community.errors import Code, CommunityError
from accord.community.petitions import MEMBER_INVITED, make_petition, submit_petition
from accord.demo.story import STATION, DemoHome, Neighbour, Story, StoryVisit, load_or_create_key
from accord.kernel.clock import Clock, format_time
from accord.kernel.signing import SigningKey
from accord.relay.errors import Code as RelayCode
from accord.relay.errors import RelayError
from accord.relay.platforms.webchat import Admin, open_admin
from accord.station.agents import CONCIERGE, linked_users, open_agent
from accord.station.community import CommunityPlane
from accord.station.home import Home
from accord.station.plane import PlaneContext
from accord.station.relay import control_settings, operate_relay, webchat_settings
from accord.station.sections import CommunitySettings, StationSettings, StoreSettings
from accord.station.settings import Settings
from accord.station.store import store_location
from accord.web import outgoing

_DAY = 86_400


def neighbour_key(place: DemoHome, neighbour: Neighbour) -> SigningKey:
    """Load or create the key of a neighbour's device."""
    return load_or_create_key(Home(place.neighbour(neighbour.name)).device_key)


async def invite(
    station: Client, key: SigningKey, neighbour: Neighbour, node_id: str, clock: Clock
) -> str:
    """Invite a neighbour's device, and return the link; `key` is the station's."""
    data = {
        "invitee_node_id": node_id,
        "initial_level": neighbour.level,
        "expires_at": format_time(clock.now() + _DAY),
        "display_name": neighbour.called,
    }
    made = await submit_petition(station, make_petition(key, station, MEMBER_INVITED, data, clock))
    if made.link is None:
        raise CommunityError(Code.UNAUTHORIZED, f"{neighbour.called} could not be asked in")
    return made.link


@asynccontextmanager
async def run_neighbour(
    place: DemoHome,
    neighbour: Neighbour,
    settings: Settings,
    clock: Clock,
    link: str,
    community: str,
) -> AsyncIterator[Client]:
    """Run a neighbour's device and yield its owner's client.

    Args:
        link: An invite, for a device that is in no community yet.
    """
    home = place.neighbour(neighbour.name)
    own = settings.model_copy(
        update={
            "home": home,
            "station": StationSettings(name=neighbour.called),
            "store": StoreSettings(),
            "community": CommunitySettings(found="", join=link, port=0, sync_seconds=1.0),
        }
    )
    key = neighbour_key(place, neighbour)
    plane = CommunityPlane(own, key, clock, with_models=False)
    ready, draining = asyncio.Event(), asyncio.Event()
    async with AsyncExitStack() as opened:
        group = await opened.enter_async_context(asyncio.TaskGroup())
        group.create_task(plane.run(PlaneContext(ready.set, draining)), name=neighbour.name)
        opened.callback(draining.set)
        await ready.wait()
        client = Client(
            "http://node",
            key,
            community,
            key.id,
            transport=LocalTransport(plane.serve),
            clock=clock,
        )
        yield await opened.enter_async_context(client)


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The clients of the station and of the neighbours, by their names in the story."""

    story: Story
    settings: Settings
    clients: Mapping[str, Client]

    async def post(self) -> None:
        """Post on the market, and end some posts."""
        for number, each in enumerate(self.story.posts):
            client = self.clients[each.by]
            given = {
                "client_id": f"demo-post-{number}",
                "category": each.category,
                "title": each.title,
                "body": each.body,
                "tags": list(each.tags),
                "ttl_seconds": each.seconds,
            }
            made = await client.call("market.post", {}, given, idempotent=True)
            if each.ends:
                ended = {
                    "client_id": f"demo-end-{number}",
                    "event_id": made["output"]["event_id"],
                    "reason": each.ends,
                }
                await client.call("market.expire", {}, ended, idempotent=True)

    async def add_documents(self) -> None:
        """Ingest the texts into a corpus, each with its licence."""
        blobs = Blobs(self.settings.home / "blobs")
        for each in self.story.documents:
            given = {
                "doc_cid": await blobs.put(each.path),
                "title": each.title,
                "language": "en",
                "metadata": {"licence": each.licence},
            }
            where = {"corpus": self.story.corpus}
            await self.clients[STATION].call("rag.ingest", where, given, idempotent=True)

    async def share(self) -> None:
        """Share files with everybody, and have the station fetch their names."""
        place = DemoHome.of(self.settings.home)
        for each in self.story.files:
            blobs = Blobs(place.neighbour(each.by) / "blobs")
            given = {
                "cid": await blobs.put(each.path),
                "name": each.file,
                "title": each.title,
            }
            await self.clients[each.by].call("experimental.file.share", {}, given, idempotent=True)
        await self.clients[STATION].call("experimental.file.offered", {}, {"refresh": True})

    async def write(self) -> None:
        """Send sealed messages to each other."""
        for number, each in enumerate(self.story.messages):
            given = {
                "client_id": f"demo-message-{number}",
                "recipient": self.clients[each.to].node_id,
                "body": each.text,
                "attachments": [],
            }
            await self.clients[each.by].call("chat.send", {}, given, idempotent=True)

    async def meet(self) -> None:
        """Sync all nodes."""
        for client in self.clients.values():
            await client.post("/node/v1/sync", {})


@asynccontextmanager
async def open_neighbours(
    story: Story, settings: Settings, station: Client, key: SigningKey, clock: Clock
) -> AsyncIterator[Neighbours]:
    """Run all neighbours until the end of the block; `station` and `key` are the station's own."""
    place = DemoHome.of(settings.home)
    members = {each["node_id"] for each in (await station.get("/node/v1/members"))["members"]}
    waiting = {each["invitee"] for each in (await station.get("/node/v1/community"))["invites"]}
    clients = {STATION: station}
    async with AsyncExitStack() as opened:
        for neighbour in story.neighbours:
            node_id = neighbour_key(place, neighbour).id
            link = ""
            # A neighbour who joins needs a new link, since that of an open invite is lost.
            if node_id not in (members if neighbour.joins else members | waiting):
                link = await invite(station, key, neighbour, node_id, clock)
            if neighbour.joins:
                clients[neighbour.name] = await opened.enter_async_context(
                    run_neighbour(place, neighbour, settings, clock, link, station.community)
                )
        yield Neighbours(story, settings, clients)


DESK: Final = "demo-yard"
"""The name of the unattended agent and its space."""

LOBBY: Final = "lobby"
"""The story's name for the concierge's space, whatever the settings call it."""

_STEP_SECONDS: Final = 0.2
_SECONDS: Final = 30.0


@dataclass(eq=False, repr=False)
class Conversations:
    """The web chat of a station, as its visitors use it."""

    story: Story
    settings: Settings
    address: str
    clock: Clock

    async def ask_the_concierge(self) -> None:
        """Ask questions that the documents answer."""
        for visit in self._visits(LOBBY):
            space = self.settings.concierge.space
            await self._say(visit, space, self.settings.home / CONCIERGE)

    async def leave_a_dead_letter(self) -> None:
        """Write to an agent without a gateway, and revoke it."""
        async with open_agent(self.settings, self.clock, DESK) as guest:
            for visit in self._visits(DESK):
                if visit.linked:
                    await self._say(visit, DESK, guest.folder)
        async with operate_relay(self.settings, self.clock, "demo") as connector:
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
        await asyncio.sleep(control_settings(self.settings).freshness_seconds)

    def _visits(self, space: str) -> list[StoryVisit]:
        return [each for each in self.story.visits if each.space == space]

    async def _say(self, visit: StoryVisit, space: str, agent: Path | None) -> None:
        """Write a visit's messages in a space, once the agent of a folder is linked to it."""
        chosen = webchat_settings(self.settings)
        async with (
            open_admin(store_location(self.settings), self.clock, chosen) as admin,
            outgoing.bounded_client(
                outgoing.SMALL,
                base_url=f"{self.address}/chat/api/",
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
            raise RelayError(RelayCode(told["error"]), told["message"], where=path)
    except httpx.HTTPError as error:
        raise RelayError(
            RelayCode.UNAVAILABLE, f"the web chat does not answer ({error})"
        ) from error
    return answer.json()
