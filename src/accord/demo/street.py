"""The neighbours of the demo: nodes of their own for as long as the story is told.

Owns a neighbour's device from its start to its end. Each is the node that every station has, with
a key and a log of its own in the demo's folder, and it joins by an invite like anybody.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from accord.community.client import Client, LocalTransport
from accord.community.client.petitioning import INVITED, petition, put
from accord.community.errors import Code, CommunityError
from accord.demo.home import DemoHome, kept_key
from accord.demo.story import Neighbour
from accord.kernel.clock import Clock, format_time
from accord.kernel.signing import SigningKey
from accord.station.community import CommunityPlane
from accord.station.home import Home
from accord.station.plane import PlaneContext
from accord.station.sections import CommunitySettings, StationSettings, StoreSettings
from accord.station.settings import Settings

_DAY = 86_400


def neighbour_key(place: DemoHome, neighbour: Neighbour) -> SigningKey:
    """The key of a neighbour's device, made at first."""
    return kept_key(Home(place.neighbour(neighbour.name)).device_key)


async def invited(
    station: Client, key: SigningKey, neighbour: Neighbour, node_id: str, clock: Clock
) -> str:
    """Ask a neighbour in, and return the link.

    Args:
        station: The station's own client.
        key: The station's.
        neighbour: Whom.
        node_id: The neighbour's device.
        clock: The time.
    """
    data = {
        "invitee_node_id": node_id,
        "initial_level": neighbour.level,
        "expires_at": format_time(clock.now() + _DAY),
        "display_name": neighbour.called,
    }
    made = await put(station, petition(key, station, INVITED, data, clock))
    if made.link is None:
        raise CommunityError(Code.UNAUTHORIZED, f"{neighbour.called} could not be asked in")
    return made.link


@asynccontextmanager
async def at_home(
    place: DemoHome,
    neighbour: Neighbour,
    settings: Settings,
    clock: Clock,
    link: str,
    community: str,
) -> AsyncIterator[Client]:
    """A neighbour's device while it runs, as its owner uses it.

    Args:
        place: The demo's folder.
        neighbour: Whose.
        settings: The station's, of which the neighbour's differ in little.
        clock: The time.
        link: An invite, for a device that is in no community yet.
        community: The community's id.
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
