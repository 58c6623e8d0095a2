"""From the fabric to the community: a service that answers for the bus.

Owns what becomes of a call on that way. Who may call was decided by the authority before; whether
the community answers is decided by its bus, which knows the bridge as this node and no more.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from accord.bridge.asking import Bus
from accord.bridge.errors import to_fabric
from accord.bridge.journal import CANCELLED, Crossing, Journal
from accord.bridge.naming import CONTRACT
from accord.bridge.offering import Bridged, Offering
from accord.bridge.underway import Underway
from accord.community.errors import Code, CommunityError
from accord.fabric import Authority, Request, Service
from accord.fabric.calls import keep_none
from accord.kernel.clock import Clock
from accord.kernel.signing import SigningKey
from accord.kernel.ulid import UlidSource, is_ulid
from accord.storage import Store

_SECONDS: Final = 170.0

FindBus = Callable[[], Bus]
"""The bus, as it is now.

It raises a CommunityError where there is none.
"""


class Outward:
    """Answers the RPCs of an offering by the bus.

    Args:
        bus: Where the bus is.
        journal: What is told of each call.
        underway: The members' calls that came the other way.
        clock: The time.
    """

    def __init__(self, bus: FindBus, journal: Journal, underway: Underway, clock: Clock) -> None:
        self._bus = bus
        self._journal = journal
        self._underway = underway
        self._ids = UlidSource(clock)

    def service(
        self,
        offering: Offering,
        *,
        key: SigningKey,
        authority: Authority,
        store: Store,
        clock: Clock,
    ) -> Service:
        """The service that offers them; a journal of contracts is told who asked, not what."""
        service = Service(
            offering.manifest,
            key=key,
            authority=authority,
            store=store,
            # The bus keeps nothing of what is said, and whoever comes this way is owed the same.
            policy=keep_none,
            deadline=_SECONDS,
            clock=clock,
        )
        for name, bridged in offering.bridged.items():
            service.rpc(name)(self._answering(bridged))
        return service

    def _answering(self, bridged: Bridged) -> Callable[[Request, Any], Awaitable[Any]]:
        async def answer(request: Request, payload: Any) -> dict[str, Any]:
            try:
                return await self._cross(bridged, request, payload)
            except CommunityError as error:
                raise to_fabric(error) from error

        return answer

    async def _cross(self, bridged: Bridged, request: Request, payload: Any) -> dict[str, Any]:
        bus = self._bus()
        # A request id of the bus is a ULID; elsewhere it may be any text.
        request_id = request.id if is_ulid(request.id) else self._ids.new()
        crossing = Crossing(
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
        failed: str | None = CANCELLED
        try:
            self._check_loop(request)
            body = _at_once(payload) if bridged.may_stream else payload
            answer = await bus.call(
                bridged.capability, bridged.version, body, request_id=request_id
            )
            failed = None
        except CommunityError as error:
            failed = error.code.value
            raise
        finally:
            await self._journal.tell(crossing, since, failed)
        return answer

    def _check_loop(self, request: Request) -> None:
        if request.trace.id in self._underway:
            raise CommunityError(
                Code.BAD_REQUEST,
                "a call that came over the bridge does not go back over it",
                mend="ask the community outside of what a member has asked for",
            )


def _at_once(payload: Any) -> Any:
    """The request for an answer that is no stream."""
    asked = payload.get("input") if isinstance(payload, dict) else None
    if not isinstance(asked, dict):
        return payload  # the bus says what is wrong with it
    return {**payload, "input": {**asked, "stream": False}}
