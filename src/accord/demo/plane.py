"""The demo's plane: sets the story up once on a running station, and runs its services.

A step that is done is recorded and not repeated; one that fails makes the plane fail, which the
supervisor restarts. The station does not wait for it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import structlog
from starlette.routing import BaseRoute

from accord.community.client import Client
from accord.demo.people import Conversations, Neighbours, open_neighbours
from accord.demo.services import DemoServices
from accord.demo.story import DemoHome, story
from accord.station.authority import AuthorityPlane
from accord.station.plane import PartReport, Plane, PlaneContext, PlaneState
from accord.station.run import StationContext

_log = structlog.stdlib.get_logger(__name__)

Told = Callable[[str, int, int], None]
"""Called with the current step, its number and the number of steps."""

STEPS: Final = 10
_STEP_SECONDS: Final = 0.1
_ANSWER_SECONDS: Final = 150.0


class DemoPlane:
    """The demo of a station; `told` is called with the progress."""

    name = "demo"
    routes: Sequence[BaseRoute] = ()

    def __init__(self, ground: StationContext, others: Sequence[Plane], told: Told) -> None:
        self._ground = ground
        self._others = others
        self._told = told
        self._place = DemoHome.of(ground.settings.home)
        self._at: PartReport | None = None

    def parts(self) -> Sequence[PartReport]:
        """Report how far the story is set up."""
        return () if self._at is None else (self._at,)

    async def run(self, context: PlaneContext) -> None:
        """Do the remaining steps, then run the services until the station drains."""
        await asyncio.to_thread(self._place.path.mkdir, mode=0o700, parents=True, exist_ok=True)
        context.ready()
        living = asyncio.create_task(self._live(context), name="demo")
        draining = asyncio.create_task(context.draining.wait())
        try:
            await asyncio.wait({living, draining}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            draining.cancel()
            # An interrupted step is repeated at the next start; steps are idempotent.
            living.cancel()
            await asyncio.wait({living})
        if not living.cancelled():
            living.result()

    async def _live(self, context: PlaneContext) -> None:
        chosen = self._ground.settings
        await self._until_ready(context, "community")
        await self._tell_of_the_community()
        if chosen.relay.enabled and chosen.relay.webchat and chosen.concierge.enabled:
            await self._until_ready(context, "concierge")
            await self._tell_conversations()
        if not chosen.authority.enabled:
            self._end()
            await context.draining.wait()
            return
        await self._until_ready(context, "authority")
        authority = next(each for each in self._others if isinstance(each, AuthorityPlane))
        assert authority.running is not None
        agreements = DemoServices(story(), chosen, self._ground.address, authority.running)
        await self._do("contracts", agreements.accept)
        async with agreements.serving():
            await self._do("loans and jobs", agreements.lend)
            await self._do("plans", agreements.propose)
            self._end()
            await context.draining.wait()

    async def _tell_of_the_community(self) -> None:
        names = ("neighbours", "market", "documents", "files", "messages")
        if set(names) <= set(self._place.done()):
            return
        async with self._street() as commons:
            await self._do("neighbours", commons.meet)
            await self._do("market", commons.post)
            await self._do("documents", commons.add_documents)
            await self._do("files", commons.share)
            await self._do("messages", commons.write)
            await commons.meet()

    async def _tell_conversations(self) -> None:
        ground = self._ground
        talks = Conversations(story(), ground.settings, ground.address, ground.clock)
        await self._do("questions to the concierge", talks.ask_the_concierge)
        await self._do("a dead letter", talks.leave_a_dead_letter)
        await self._do("words that nobody hears", talks.speak_to_nobody)

    @asynccontextmanager
    async def _street(self) -> AsyncIterator[Neighbours]:
        ground = self._ground
        async with self._client(ground.key.id) as client:
            status = await client.get("/node/v1/status")
        community = status["communities"][0]["community_id"]
        async with (
            self._client(community) as station,
            open_neighbours(story(), ground.settings, station, ground.key, ground.clock) as commons,
        ):
            yield commons

    def _client(self, community: str) -> Client:
        ground = self._ground
        return Client(
            ground.address,
            ground.key,
            community,
            ground.key.id,
            seconds=_ANSWER_SECONDS,
            clock=ground.clock,
        )

    async def _do(self, step: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do a step, unless it is done."""
        done = await asyncio.to_thread(self._place.done)
        if step in done:
            return
        self._told(step, len(done), STEPS)
        self._at = PartReport("story", f"{len(done)} of {STEPS}", f"telling: {step}", is_well=True)
        await work()
        await asyncio.to_thread(self._place.note, step)
        _log.info("demo step done", step=step)

    def _end(self) -> None:
        self._told("told", STEPS, STEPS)
        self._at = PartReport("story", "ready", "everything here is a demo", is_well=True)

    async def _until_ready(self, context: PlaneContext, name: str) -> None:
        while not any(  # noqa: ASYNC110 - planes come and go
            each.name == name and each.state is PlaneState.READY for each in context.reports()
        ):
            await asyncio.sleep(_STEP_SECONDS)
