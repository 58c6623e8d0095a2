"""From the fabric to the community: a service that answers by calling the bus.

The authority has checked the caller before; the bus knows the bridge as this node.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

from accord.bridge.calls import CANCELLED, BridgeBus, BridgedCall, BridgeJournal, CallsInProgress
from accord.bridge.rules import CONTRACT, BridgedCapability, BridgeOffering, to_fabric
from accord.capabilities.doors.local import descriptions
from accord.community.bus import Registry
from accord.community.errors import Code, CommunityError
from accord.fabric import Authority, Request, Service
from accord.fabric.journal import keep_none
from accord.kernel.clock import Clock
from accord.kernel.signing import SigningKey
from accord.kernel.ulid import UlidSource, is_ulid
from accord.storage import Store

_SECONDS: Final = 170.0


def offered_forms(registry: Registry, wanted: Iterable[str]) -> list[Mapping[str, Any]]:
    """Return the descriptions of the wanted capabilities that a node offers."""
    known = descriptions()
    return [
        known[descriptor.schema_hash]
        for name in sorted(set(wanted))
        for descriptor in registry.descriptors(name)
        if descriptor.schema_hash in known
    ]


class Outward:
    """Answers the RPCs of an offering by calling the bus.

    Args:
        journal: Records each call.
        in_progress: The traces of members' calls in the other direction.
    """

    def __init__(
        self, bus: BridgeBus, journal: BridgeJournal, in_progress: CallsInProgress, clock: Clock
    ) -> None:
        self._bus = bus
        self._journal = journal
        self._in_progress = in_progress
        self._ids = UlidSource(clock)

    def service(
        self,
        offering: BridgeOffering,
        *,
        key: SigningKey,
        authority: Authority,
        store: Store,
        clock: Clock,
    ) -> Service:
        """Return the service that offers the RPCs; its journal records callers, not content."""
        service = Service(
            offering.manifest,
            key=key,
            authority=authority,
            store=store,
            # The bus stores no content of calls, so neither does the journal of contracts.
            policy=keep_none,
            deadline=_SECONDS,
            clock=clock,
        )
        for name, bridged in offering.bridged.items():
            service.rpc(name)(self._answering(bridged))
        return service

    def _answering(self, bridged: BridgedCapability) -> Callable[[Request, Any], Awaitable[Any]]:
        async def answer(request: Request, payload: Any) -> dict[str, Any]:
            try:
                return await self._cross(bridged, request, payload)
            except CommunityError as error:
                raise to_fabric(error) from error

        return answer

    async def _cross(
        self, bridged: BridgedCapability, request: Request, payload: Any
    ) -> dict[str, Any]:
        bus = self._bus
        # Request ids of the bus are ULIDs; on the fabric they may be any text.
        request_id = request.id if is_ulid(request.id) else self._ids.new()
        bridged_call = BridgedCall(
            "outward",
            request.trace.id,
            request_id,
            request.id,
            bus.community,
            request.who.subject,
            bridged.capability,
            CONTRACT,
            bridged.rpc,
        )
        since = self._journal.now()
        error_code: str | None = CANCELLED
        try:
            self._check_loop(request)
            body = _at_once(payload) if bridged.may_stream else payload
            answer = await bus.call(
                bridged.capability, bridged.version, body, request_id=request_id
            )
            error_code = None
        except CommunityError as error:
            error_code = error.code.value
            raise
        finally:
            await self._journal.record(bridged_call, since, error_code)
        return answer

    def _check_loop(self, request: Request) -> None:
        if request.trace.id in self._in_progress:
            raise CommunityError(
                Code.BAD_REQUEST,
                "a call that came over the bridge does not go back over it",
                mend="ask the community outside of what a member has asked for",
            )


def _at_once(payload: Any) -> Any:
    """Ask for an answer that is no stream."""
    asked = payload.get("input") if isinstance(payload, dict) else None
    if not isinstance(asked, dict):
        return payload  # the bus says what is wrong with it
    return {**payload, "input": {**asked, "stream": False}}
