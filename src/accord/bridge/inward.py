"""From the community to the fabric: chosen RPCs as capabilities while their contracts are active.

The bus has checked the caller before; the authority's grants and the service decide on the call.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog

from accord.bridge.calls import (
    CANCELLED,
    BridgeBus,
    BridgedCall,
    BridgeJournal,
    CallsInProgress,
    ask_service,
)
from accord.bridge.rules import BridgeError, ChosenRpc, borrowed_capability, to_community
from accord.community.bus import Call, Registry
from accord.community.errors import Code, CommunityError
from accord.community.rules.capabilities import CapabilityDescriptor
from accord.fabric import FabricError, Session, Terms
from accord.fabric.rules.terms import Rpc
from accord.kernel.clock import Clock

Active = tuple[str, Mapping[str, Any]]
"""An active contract: its digest and its manifest."""

FindContract = Callable[[str], Awaitable[Active | None]]
"""Finds the active contract of an id."""

_SECONDS: Final = 60.0
# Answer before the deadline of the bus.
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
        journal: Records each call.
        in_progress: Holds the traces of calls in progress.
        level: The least trust level of a caller.
    """

    def __init__(
        self,
        session: Session,
        bus: BridgeBus,
        registry: Registry,
        *,
        journal: BridgeJournal,
        in_progress: CallsInProgress,
        clock: Clock,
        level: str,
    ) -> None:
        self._session = session
        self._bus = bus
        self._registry = registry
        self._journal = journal
        self._in_progress = in_progress
        self._clock = clock
        self._level = level
        self._registered: dict[str, _Registered] = {}
        self._reported: dict[str, str] = {}

    async def refresh(self, chosen: Sequence[ChosenRpc], find: FindContract) -> None:
        """Register the RPCs of active contracts, and remove the others."""
        found = {name: await find(name) for name in {each.contract for each in chosen}}
        for each in chosen:
            self._update(each, found[each.contract])

    def close(self) -> None:
        """Remove all capabilities; calls in progress are finished."""
        for capability in list(self._registered):
            self._remove(capability)

    def _update(self, chosen: ChosenRpc, active: Active | None) -> None:
        name = chosen.capability
        known = self._registered.get(name)
        if known is not None and (active is None or active[0] != known.digest):
            self._remove(name)
        elif known is not None:
            return
        if active is None:
            return
        try:
            terms = Terms(active[1])
            self._register(chosen, terms, borrowed_capability(terms.manifest, chosen, self._level))
        except (BridgeError, CommunityError, FabricError) as error:
            if self._reported.get(name) != str(error):
                self._reported[name] = str(error)
                _log.warning("service not offered as a capability", capability=name, why=str(error))

    def _register(self, chosen: ChosenRpc, terms: Terms, descriptor: CapabilityDescriptor) -> None:
        rpc = terms.rpc[chosen.rpc]

        async def serve(call: Call) -> Mapping[str, Any]:
            return await self._serve(call, chosen, rpc)

        self._registry.register(descriptor, serve, seconds=_SECONDS)
        self._registered[chosen.capability] = _Registered(terms.digest, descriptor.key)
        self._reported.pop(chosen.capability, None)
        _log.info("service offered as a capability", capability=descriptor.key, contract=terms.id)

    def _remove(self, capability: str) -> None:
        known = self._registered.pop(capability)
        self._registry.deregister(known.key)
        _log.info("service no longer offered as a capability", capability=known.key)

    async def _serve(self, call: Call, chosen: ChosenRpc, rpc: Rpc) -> Mapping[str, Any]:
        if call.community != self._bus.community:
            raise CommunityError(Code.UNAUTHORIZED, "services are for another community")
        trace = call.trace_id
        bridged_call = BridgedCall(
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
        error_code: str | None = CANCELLED
        within = max(call.deadline - self._clock.monotonic() - _MARGIN, _MARGIN)
        try:
            with self._in_progress.track(trace):
                output = await ask_service(
                    self._session.link,
                    rpc,
                    call.body["input"],
                    request_id=call.request_id,
                    within=within,
                )
            error_code = None
        except FabricError as error:
            error_code = error.type
            raise to_community(error) from error
        finally:
            await self._journal.record(bridged_call, since, error_code)
        ms = max(0, int((self._journal.now() - since) * 1000))
        return {"output": output, "meta": {"ms": ms, "trace_id": trace}}
