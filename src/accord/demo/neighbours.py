"""The neighbours of the demo: nodes that run while the story is set up, and what they do.

Each has a key and a log in the demo's folder and joins by an invite. Every step is idempotent.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from accord.capabilities.file import Blobs
from accord.community.client import Client, LocalTransport
from accord.community.errors import Code, CommunityError
from accord.community.petitions import MEMBER_INVITED, make_petition, submit_petition
from accord.demo.home import DemoHome, load_or_create_key
from accord.demo.story import STATION, Neighbour, Story
from accord.kernel.clock import Clock, format_time
from accord.kernel.signing import SigningKey
from accord.station.community import CommunityPlane
from accord.station.home import Home
from accord.station.plane import PlaneContext
from accord.station.sections import CommunitySettings, StationSettings, StoreSettings
from accord.station.settings import Settings

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
        settings: The station's, from which the neighbour's differ little.
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
