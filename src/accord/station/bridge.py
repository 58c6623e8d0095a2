"""The bridge's plane: runs the bridge while both the community and the authority are up.

The authority admits it like any other service, at the station's own address.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from starlette.routing import BaseRoute

from accord.authority.assembly import RunningAuthority
from accord.bridge.bridge import DEPLOYMENT, Bridge, Deploy, FabricAccess, deploy
from accord.bridge.calls import Active, FindContract
from accord.bridge.settings import BridgeSettings
from accord.community.node import Node
from accord.contracts import digest
from accord.fabric import Authority
from accord.kernel.clock import Clock
from accord.kernel.signing import SigningKey
from accord.station.authority import AuthorityPlane
from accord.station.errors import StationError
from accord.station.plane import PartReport, PlaneContext
from accord.station.settings import Settings
from accord.station.store import SERVICE, service_folder
from accord.storage import open_store

_STEP_SECONDS: Final = 0.1


@dataclass(eq=False, repr=False)
class BridgePlane:
    """The bridge of a station; `chosen` are the settings `[bridge]`."""

    name = "bridge"

    settings: Settings
    chosen: BridgeSettings
    clock: Clock
    address: str
    authority: AuthorityPlane
    _node: Node | None = field(init=False, default=None)
    _bridge: Bridge | None = field(init=False, default=None)
    _accepted: set[str] = field(init=False, default_factory=set)

    @property
    def routes(self) -> Sequence[BaseRoute]:
        """None: it is reached over the bus and over NATS."""
        return ()

    def parts(self) -> Sequence[PartReport]:
        """Report the state of each direction."""
        if self._bridge is None:
            return ()
        return [
            PartReport(way.name, way.state, way.reason, way.is_open)
            for way in self._bridge.directions
        ]

    def offer(self, node: Node, _clock: Clock) -> None:
        """Take the community's node when it opens: a `Register` of that plane."""
        self._node = node

    async def run(self, context: PlaneContext) -> None:
        """Run a bridge whenever both sides are up, until the station drains."""
        folder = service_folder(self.settings, DEPLOYMENT)
        offers, calls = await asyncio.to_thread(_keys, folder)
        async with open_store(folder, SERVICE) as store:
            # What the bridge waits for is reported by its parts and is no fault of the plane.
            context.ready()
            while not context.draining.is_set():
                node, running = self._node, self.authority.running
                if node is None or running is None:
                    await _pause(context)
                    continue
                fabric = FabricAccess(
                    Authority(self.address),
                    self._deploying(running),
                    _finding(running),
                    offers,
                    calls,
                )
                self._bridge = Bridge(node, fabric, store, self.chosen, self.clock)
                try:
                    await self._carry(self._bridge, node, running, context)
                finally:
                    self._bridge = None

    async def _carry(
        self, bridge: Bridge, node: Node, running: RunningAuthority, context: PlaneContext
    ) -> None:
        """Run a bridge while both of its sides stay the same; `StationError` if it fails."""
        carrying = asyncio.create_task(bridge.run(), name="bridge")
        try:
            while not (carrying.done() or context.draining.is_set()):
                if self._node is not node or self.authority.running is not running:
                    return
                await _pause(context)
        finally:
            carrying.cancel()
            await asyncio.wait([carrying])
            if not carrying.cancelled() and (error := carrying.exception()) is not None:
                raise StationError(_sentence(error), where=self.name) from error

    def _deploying(self, running: RunningAuthority) -> Deploy:
        async def deployed(manifest: Mapping[str, Any], key: SigningKey, name: str) -> str | None:
            # A plan that an operator revokes while the station runs is not accepted again
            # automatically.
            accept = self.chosen.accept and digest(manifest) not in self._accepted
            waits = await deploy(running.operating, manifest, key=key, instance=name, accept=accept)
            self._accepted.add(digest(manifest))
            return waits

        return deployed


async def _pause(context: PlaneContext) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(_STEP_SECONDS):
            await context.draining.wait()


def _finding(running: RunningAuthority) -> FindContract:
    async def find(contract: str) -> Active | None:
        active = running.authority.catalog.projection.effective.get(contract)
        # Digests that are active together are compatible, so any will do.
        digest = next(iter(active.digests), None) if active is not None and active.ok else None
        manifest = None if digest is None else await running.authority.manifests.get(digest)
        return None if digest is None or manifest is None else (digest, manifest)

    return find


def _keys(folder: Path) -> tuple[SigningKey, SigningKey]:
    """Return the keys of its two sessions; they are created on the first start."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StationError(
            f"the folder of the bridge cannot be made ({error.strerror})",
            where=str(folder),
            mend="let this user write to it",
        ) from error
    files = (folder / "key.ed25519", folder / "calls.ed25519")
    offers, calls = (
        SigningKey.load(file) if file.exists() else SigningKey.create(file) for file in files
    )
    return offers, calls


def _sentence(error: BaseException) -> str:
    first: BaseException = error
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return str(first) or type(first).__name__
