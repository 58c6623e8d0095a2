"""The bridge between one node and one fabric, with a session for each direction.

The directions are independent. The bridge's contracts are proposed and its keys added by the
ordinary commands of the authority; a setting decides whether plans are accepted at once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import structlog

from accord.authority.admin import AdminCommands
from accord.authority.rules.errors import AuthorityError
from accord.bridge.calls import (
    BridgeBus,
    BridgeJournal,
    CallsInProgress,
    FindContract,
    Inward,
    Outward,
    offered_forms,
)
from accord.bridge.rules import BridgeOffering, caller_contract, choose_rpcs, make_offering
from accord.bridge.settings import BridgeSettings
from accord.community.node import Node
from accord.contracts.authoring import Contract
from accord.contracts.session_proof import session_key
from accord.fabric import Authority, FabricError, Service
from accord.kernel.clock import Clock
from accord.kernel.signing import SigningKey
from accord.storage import Store

DEPLOYMENT: Final = "bridge"
_BY: Final = "station"


async def deploy(
    operating: AdminCommands,
    manifest: Mapping[str, Any],
    *,
    key: SigningKey,
    instance: str,
    accept: bool,
) -> str | None:
    """Propose a contract of the bridge and add its key; return the plan to be accepted."""
    # A pending plan belongs to the session, which will ask for the same, so that no second plan is
    # made.
    by = _BY if accept else session_key(key)
    asked = {"deployment": DEPLOYMENT, "manifest": dict(manifest), "accept": accept, "by": by}
    plan = (await operating.do("deploy", asked))["plan"]
    await operating.do(
        "instances/add", {"deployment": DEPLOYMENT, "key": session_key(key), "name": instance}
    )
    return plan["id"] if plan is not None and plan["state"] == "pending" else None


Deploy = Callable[[Mapping[str, Any], SigningKey, str], Awaitable[str | None]]
"""Proposes a contract and adds a key as an instance; returns the pending plan, if any."""

_LOOK_SECONDS: Final = 1.0

_log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class BridgeDirection:
    """The state of one direction.

    Attributes:
        name: `outward` or `inward`.
        reason: What it waits for, as a sentence; empty if it is open.
        is_broken: Whether something failed; else it only waits.
    """

    name: str
    is_open: bool = False
    reason: str = "it is being opened"
    is_broken: bool = False

    @property
    def state(self) -> str:
        """The state in one word."""
        return "ready" if self.is_open else "closed" if self.is_broken else "waiting"


@dataclass(frozen=True, slots=True)
class FabricAccess:
    """How the bridge reaches the fabric.

    Attributes:
        offers: The key that offers capabilities.
        calls: The key that calls services.
    """

    authority: Authority
    deploy: Deploy
    find: FindContract
    offers: SigningKey
    calls: SigningKey


class Bridge:
    """Bridges a node and a fabric while it runs; `store` has the journal of calls."""

    def __init__(
        self, node: Node, fabric: FabricAccess, store: Store, settings: BridgeSettings, clock: Clock
    ) -> None:
        self._node = node
        self._fabric = fabric
        self._store = store
        self._settings = settings
        self._clock = clock
        self._journal = BridgeJournal(store, clock, DEPLOYMENT)
        self._in_progress = CallsInProgress()
        self._bus = BridgeBus(node, clock, settings.community)
        self._chosen = choose_rpcs(settings.services)
        self._directions = {"outward": BridgeDirection("outward")}
        if self._chosen:
            self._directions["inward"] = BridgeDirection("inward")

    @property
    def directions(self) -> tuple[BridgeDirection, ...]:
        """The state of each direction."""
        return tuple(self._directions.values())

    async def run(self) -> None:
        """Run until cancelled; raises `BridgeError` if the capabilities make no contract."""
        offered = make_offering(offered_forms(self._node.bus.registry, self._settings.capabilities))
        for finding in offered.left_out:
            _log.info("capability not bridged", why=str(finding))
        contract = caller_contract(self._chosen)
        directions = [("outward", offered.manifest, partial(self._outward, offered))]
        if self._chosen:
            directions.append(("inward", contract.manifest(), partial(self._inward, contract)))
        try:
            async with asyncio.TaskGroup() as group:
                for direction, manifest, carry in directions:
                    group.create_task(
                        self._run_direction(direction, manifest, carry), name=direction
                    )
        finally:
            await self._bus.aclose()

    async def _run_direction(
        self, direction: str, manifest: Mapping[str, Any], carry: Callable[[], Awaitable[None]]
    ) -> None:
        """Deploy a direction once, and open it again whenever its session ends."""
        key = self._fabric.offers if direction == "outward" else self._fabric.calls
        await self._deployed(direction, manifest, key)
        while True:
            try:
                await carry()
                reason = "its session has ended"
            except FabricError as error:
                reason = str(error)
            _log.warning("bridge closed", direction=direction, why=reason)
            self._directions[direction] = BridgeDirection(direction, reason=reason, is_broken=True)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _outward(self, offered: BridgeOffering) -> None:
        outward = Outward(self._bus, self._journal, self._in_progress, self._clock)
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
                in_progress=self._in_progress,
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

    async def _deployed(self, direction: str, manifest: Mapping[str, Any], key: SigningKey) -> None:
        """Deploy a contract, retrying until the authority takes it."""
        while not await self._is_deployed(direction, manifest, key):  # noqa: ASYNC110 - of others
            await asyncio.sleep(_LOOK_SECONDS)

    async def _is_deployed(
        self, direction: str, manifest: Mapping[str, Any], key: SigningKey
    ) -> bool:
        try:
            plan = await self._fabric.deploy(manifest, key, direction)
        except AuthorityError as error:
            if self._directions[direction].reason != str(error):
                _log.warning("bridge not deployed", direction=direction, why=str(error))
            self._directions[direction] = BridgeDirection(
                direction, reason=str(error), is_broken=True
            )
            return False
        reason = "the authority has not admitted it yet"
        if plan is not None:
            reason = (
                f"what the community offers can be called by services once you accept it: "
                f"`accord authority accept {plan}`; or set [bridge] enabled = false"
                if direction == "outward"
                else f"its contract waits for `accord authority accept {plan}`"
            )
        self._directions[direction] = BridgeDirection(direction, reason=reason)
        return True

    def _open(self, direction: str) -> None:
        self._directions[direction] = BridgeDirection(direction, is_open=True, reason="")
