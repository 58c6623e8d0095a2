"""From the community to the fabric: chosen RPCs on the bus, while their contracts are active.

Owns which are registered, and what becomes of a member's call on that way. Who may call is decided
by the bus before; whether the service answers is decided by the authority's grants and the service.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog

from accord.bridge.asking import Bus, ask_service
from accord.bridge.borrowing import borrowed
from accord.bridge.errors import BridgeError, to_community
from accord.bridge.journal import CANCELLED, Crossing, Journal
from accord.bridge.naming import Chosen
from accord.bridge.underway import Underway
from accord.community.bus import Call, Registry
from accord.community.envelope.schemas import Descriptor
from accord.community.errors import Code, CommunityError
from accord.fabric import FabricError, Session, Terms
from accord.fabric.terms import Rpc
from accord.kernel.clock import Clock

Active = tuple[str, Mapping[str, Any]]
"""A contract that is active: its digest and its manifest."""

FindContract = Callable[[str], Awaitable[Active | None]]
"""Finds the active contract of an id; None where there is none."""

_SECONDS: Final = 60.0
# What the bus needs to answer before it gives up itself.
_MARGIN: Final = 1.0

_log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Registered:
    digest: str
    key: str


class Inward:
    """Serves chosen RPCs as capabilities.

    Args:
        session: The bridge's session, whose grants decide.
        bus: The bus on which members call.
        registry: Where the capabilities are registered.
        journal: What is told of each call.
        underway: Where calls are noted while a service works on them.
        level: How far the community must trust a caller.
    """

    def __init__(
        self,
        session: Session,
        bus: Bus,
        registry: Registry,
        *,
        journal: Journal,
        underway: Underway,
        clock: Clock,
        level: str,
    ) -> None:
        self._session = session
        self._bus = bus
        self._registry = registry
        self._journal = journal
        self._underway = underway
        self._clock = clock
        self._level = level
        self._registered: dict[str, _Registered] = {}
        self._told: dict[str, str] = {}

    async def refresh(self, chosen: Sequence[Chosen], find: FindContract) -> None:
        """Register what has become active, and take back what no longer is."""
        found = {name: await find(name) for name in {each.contract for each in chosen}}
        for each in chosen:
            self._renew(each, found[each.contract])

    def close(self) -> None:
        """Take everything back; calls in hand are finished."""
        for capability in list(self._registered):
            self._take_back(capability)

    def _renew(self, chosen: Chosen, active: Active | None) -> None:
        name = chosen.capability
        known = self._registered.get(name)
        if known is not None and (active is None or active[0] != known.digest):
            self._take_back(name)
        elif known is not None:
            return
        if active is None:
            return
        try:
            terms = Terms(active[1])
            self._register(chosen, terms, borrowed(terms.manifest, chosen, self._level))
        except (BridgeError, CommunityError, FabricError) as error:
            if self._told.get(name) != str(error):
                self._told[name] = str(error)
                _log.warning("a service is no capability", capability=name, why=str(error))

    def _register(self, chosen: Chosen, terms: Terms, descriptor: Descriptor) -> None:
        rpc = terms.rpc[chosen.rpc]

        async def serve(call: Call) -> Mapping[str, Any]:
            return await self._serve(call, chosen, rpc)

        self._registry.register(descriptor, serve, seconds=_SECONDS)
        self._registered[chosen.capability] = _Registered(terms.digest, descriptor.key)
        self._told.pop(chosen.capability, None)
        _log.info("a service is a capability", capability=descriptor.key, contract=terms.id)

    def _take_back(self, capability: str) -> None:
        known = self._registered.pop(capability)
        self._registry.deregister(known.key)
        _log.info("a service is a capability no more", capability=known.key)

    async def _serve(self, call: Call, chosen: Chosen, rpc: Rpc) -> Mapping[str, Any]:
        if call.community != self._bus.community:
            raise CommunityError(Code.UNAUTHORIZED, "services are for another community")
        trace = call.trace_id
        crossing = Crossing(
            "inward",
            trace,
            call.request_id,
            call.request_id,
            call.community,
            call.caller,
            chosen.capability,
            chosen.contract,
            chosen.rpc,
        )
        since = self._journal.now()
        failed: str | None = CANCELLED
        within = max(call.deadline - self._clock.monotonic() - _MARGIN, _MARGIN)
        try:
            with self._underway.carrying(trace):
                output = await ask_service(
                    self._session.link,
                    rpc,
                    call.body["input"],
                    request_id=call.request_id,
                    within=within,
                )
            failed = None
        except FabricError as error:
            failed = error.type
            raise to_community(error) from error
        finally:
            await self._journal.tell(crossing, since, failed)
        ms = max(0, int((self._journal.now() - since) * 1000))
        return {"output": output, "meta": {"ms": ms, "trace_id": trace}}
