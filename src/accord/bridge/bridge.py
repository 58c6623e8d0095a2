"""The bridge: both ways between one node and one fabric, each with a session of its own.

Owns the order in which each way comes up, and that neither waits for the other: a service that is
missing keeps members from it, and nothing else.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import structlog

from accord.authority.errors import AuthorityError
from accord.bridge.asking import Bus
from accord.bridge.borrowing import caller_contract, choose
from accord.bridge.deploying import DEPLOYMENT
from accord.bridge.forms import offered_forms
from accord.bridge.inward import FindContract, Inward
from accord.bridge.journal import Journal
from accord.bridge.offering import Offering, offering
from accord.bridge.outward import Outward
from accord.bridge.settings import BridgeSettings
from accord.bridge.underway import Underway
from accord.community.node import Node
from accord.contracts.authoring import Contract
from accord.fabric import Authority, FabricError, Service
from accord.kernel.clock import Clock
from accord.kernel.signing import SigningKey
from accord.storage import Store

Deploy = Callable[[Mapping[str, Any], SigningKey, str], Awaitable[str | None]]
"""Proposes a contract and lets a key run it as an instance; the plan that waits, if one does."""

_LOOK_SECONDS: Final = 1.0

_log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Way:
    """How one way over the bridge is doing.

    Attributes:
        name: `outward` or `inward`.
        is_open: Whether calls cross.
        reason: What it waits for, as a sentence; empty where it is open.
    """

    name: str
    is_open: bool = False
    reason: str = "it is being opened"


@dataclass(frozen=True, slots=True)
class Fabric:
    """How the bridge reaches the fabric.

    Attributes:
        authority: Where the authority is.
        deploy: Has a contract of the bridge deployed.
        find: Finds an active contract.
        offers: The key that offers capabilities.
        calls: The key that calls services.
    """

    authority: Authority
    deploy: Deploy
    find: FindContract
    offers: SigningKey
    calls: SigningKey


class Bridge:
    """Bridges a node and a fabric while it runs.

    Args:
        node: The node.
        fabric: The fabric.
        store: Whose journal is told what crosses.
        settings: What crosses.
        clock: The time.
    """

    def __init__(
        self, node: Node, fabric: Fabric, store: Store, settings: BridgeSettings, clock: Clock
    ) -> None:
        self._node = node
        self._fabric = fabric
        self._store = store
        self._settings = settings
        self._clock = clock
        self._journal = Journal(store, clock, DEPLOYMENT)
        self._underway = Underway()
        self._bus = Bus(node, clock, settings.community)
        self._chosen = choose(settings.services)
        self._ways = {"outward": Way("outward")}
        if self._chosen:
            self._ways["inward"] = Way("inward")

    @property
    def ways(self) -> tuple[Way, ...]:
        """How each way is doing."""
        return tuple(self._ways.values())

    async def run(self) -> None:
        """Carry calls until cancelled.

        Raises:
            BridgeError: The capabilities make no contract.
        """
        offered = offering(offered_forms(self._node.bus.registry, self._settings.capabilities))
        for finding in offered.left_out:
            _log.info("a capability does not cross", why=str(finding))
        contract = caller_contract(self._chosen)
        ways = [("outward", offered.manifest, partial(self._outward, offered))]
        if self._chosen:
            ways.append(("inward", contract.manifest(), partial(self._inward, contract)))
        try:
            async with asyncio.TaskGroup() as group:
                for way, manifest, carry in ways:
                    group.create_task(self._keep(way, manifest, carry), name=way)
        finally:
            await self._bus.aclose()

    async def _keep(
        self, way: str, manifest: Mapping[str, Any], carry: Callable[[], Awaitable[None]]
    ) -> None:
        """Have a way deployed once, and open it whenever the authority lets it."""
        key = self._fabric.offers if way == "outward" else self._fabric.calls
        await self._deployed(way, manifest, key)
        while True:
            try:
                await carry()
                reason = "its session has ended"
            except FabricError as error:
                reason = str(error)
            _log.warning("the bridge is closed", way=way, why=reason)
            self._ways[way] = Way(way, reason=reason)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _outward(self, offered: Offering) -> None:
        outward = Outward(lambda: self._bus, self._journal, self._underway, self._clock)
        service = outward.service(
            offered,
            key=self._fabric.offers,
            authority=self._fabric.authority,
            store=self._store,
            clock=self._clock,
        )
        async with service.connect() as session:
            self._open("outward")
            await session.ended()

    async def _inward(self, contract: Contract) -> None:
        service = Service(
            contract,
            key=self._fabric.calls,
            authority=self._fabric.authority,
            clock=self._clock,
        )
        async with service.connect() as session:
            inward = Inward(
                session,
                self._bus,
                self._node.bus.registry,
                journal=self._journal,
                underway=self._underway,
                clock=self._clock,
                level=self._settings.level,
            )
            ending = asyncio.ensure_future(session.ended())
            try:
                while not ending.done():
                    await inward.refresh(self._chosen, self._fabric.find)
                    self._open("inward")
                    await asyncio.wait([ending], timeout=_LOOK_SECONDS)
                ending.result()
            finally:
                inward.close()
                ending.cancel()

    async def _deployed(self, way: str, manifest: Mapping[str, Any], key: SigningKey) -> None:
        """Have a contract deployed, as soon as the authority takes it."""
        while not await self._is_deployed(way, manifest, key):  # noqa: ASYNC110 - of others
            await asyncio.sleep(_LOOK_SECONDS)

    async def _is_deployed(self, way: str, manifest: Mapping[str, Any], key: SigningKey) -> bool:
        try:
            plan = await self._fabric.deploy(manifest, key, way)
        except AuthorityError as error:
            if self._ways[way].reason != str(error):
                _log.warning("the bridge is not deployed", way=way, why=str(error))
            self._ways[way] = Way(way, reason=str(error))
            return False
        reason = "the authority has not let it in yet"
        if plan is not None:
            reason = (
                f"what the community offers can be called by services once you accept it: "
                f"`accord authority accept {plan}`; or set [bridge] enabled = false"
                if way == "outward"
                else f"its contract waits for `accord authority accept {plan}`"
            )
        self._ways[way] = Way(way, reason=reason)
        return True

    def _open(self, way: str) -> None:
        self._ways[way] = Way(way, is_open=True, reason="")
