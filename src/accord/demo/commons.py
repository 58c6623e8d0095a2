"""What the neighbours of the demo do in their community: join, post, write to each other.

Owns the order of it. Every step asks as a member asks, through signed requests to a node, and is
written so that doing it again adds nothing: posts carry an id of their own, and who is a member is
not asked in again.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from accord.capabilities.file import Blobs
from accord.community.client import Client
from accord.demo.home import DemoHome
from accord.demo.story import STATION, Story
from accord.demo.street import at_home, invited, neighbour_key
from accord.kernel.clock import Clock
from accord.kernel.signing import SigningKey
from accord.station.settings import Settings


@dataclass(frozen=True, slots=True)
class Commons:
    """Everybody at home: the station's own client and those of the neighbours who are here.

    Attributes:
        story: What is told.
        settings: The station's.
        clients: By name in the story.
    """

    story: Story
    settings: Settings
    clients: Mapping[str, Client]

    async def post(self) -> None:
        """Post on the market, and end what has ended."""
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
        """Put the texts into a corpus, each with its licence."""
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

    async def write(self) -> None:
        """Write to each other, sealed."""
        for number, each in enumerate(self.story.messages):
            given = {
                "client_id": f"demo-message-{number}",
                "recipient": self.clients[each.to].node_id,
                "body": each.text,
                "attachments": [],
            }
            await self.clients[each.by].call("chat.send", {}, given, idempotent=True)

    async def meet(self) -> None:
        """Let everybody know what everybody did."""
        for client in self.clients.values():
            await client.post("/node/v1/sync", {})


@asynccontextmanager
async def gathered(
    story: Story, settings: Settings, station: Client, key: SigningKey, clock: Clock
) -> AsyncIterator[Commons]:
    """The whole street, until the end of the block.

    Args:
        story: Who lives there.
        settings: The station's.
        station: Its own client, in the community.
        key: Its key.
        clock: The time.
    """
    place = DemoHome.of(settings.home)
    members = {each["node_id"] for each in (await station.get("/node/v1/members"))["members"]}
    waiting = {each["invitee"] for each in (await station.get("/node/v1/community"))["invites"]}
    clients = {STATION: station}
    async with AsyncExitStack() as opened:
        for neighbour in story.neighbours:
            node_id = neighbour_key(place, neighbour).id
            link = ""
            # An invite whose link is lost, because we were stopped, is of no use to who joins.
            if node_id not in (members if neighbour.joins else members | waiting):
                link = await invited(station, key, neighbour, node_id, clock)
            if neighbour.joins:
                clients[neighbour.name] = await opened.enter_async_context(
                    at_home(place, neighbour, settings, clock, link, station.community)
                )
        yield Commons(story, settings, clients)
