"""Calling whichever provider of a capability is best.

Owns the table of what was observed of providers and the clients to reach them. Which one is best
is decided by `accord.community.bus.routing`; which nodes there are, by whoever adds them from
their manifests.
"""

from collections.abc import Mapping
from typing import Any

from accord.community.bus import routing
from accord.community.bus.routing import Outcome, Provider
from accord.community.client.client import Client
from accord.community.errors import Code, CommunityError
from accord.kernel.clock import Clock

# The provider is at fault, or has no room; another may do better.
_ELSEWHERE = frozenset(
    {
        Code.PARTITION,
        Code.TIMEOUT,
        Code.INTERNAL_ERROR,
        Code.CAPACITY_EXCEEDED,
        Code.RATE_LIMITED,
        Code.INVALID_SIGNATURE,
    }
)
# Refused before anything was done, so another may be asked whatever the capability.
_UNTOUCHED = frozenset({Code.CAPACITY_EXCEEDED, Code.RATE_LIMITED})


class Router:
    """The providers of a community's capabilities, as one caller sees them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._clients: dict[str, Client] = {}
        self._providers: dict[str, dict[str, Provider]] = {}

    def add(self, capability: str, client: Client, *, local: bool = False, load: float = 0) -> None:
        """A node says, by a verified manifest, that it offers a capability, and how busy it is.

        The client stays its owner's, who closes it.
        """
        self._clients[client.node_id] = client
        known = self._providers.setdefault(capability, {})
        provider = known.setdefault(client.node_id, Provider(client.node_id, local))
        provider.load, provider.seen = load, self._clock.monotonic()

    def remove(self, node_id: str) -> None:
        """A node is gone."""
        self._clients.pop(node_id, None)
        for known in self._providers.values():
            known.pop(node_id, None)

    def providers(self, capability: str) -> list[Provider]:
        """Those that may be called, the best first."""
        known = self._providers.get(capability, {})
        return routing.choose(known.values(), self._clock.monotonic())

    async def call(
        self,
        capability: str,
        params: Mapping[str, Any] | None = None,
        input: Mapping[str, Any] | None = None,  # noqa: A002 - the protocol's word
        *,
        idempotent: bool = False,
        **options: Any,
    ) -> dict[str, Any]:
        """Call the best provider, and the next where one fails and asking again does no harm.

        Raises:
            CommunityError: As the last provider's; `not_found` when there is none.
        """
        last = CommunityError(Code.NOT_FOUND, f"no node that can be reached offers {capability}")
        for provider in self.providers(capability):
            try:
                return await self._observed(
                    provider, capability, params, input, idempotent=idempotent, **options
                )
            except CommunityError as error:
                if error.code not in _ELSEWHERE:
                    raise
                if not idempotent and error.code not in _UNTOUCHED:
                    raise
                last = error
        raise last

    async def _observed(self, provider: Provider, *what: Any, **options: Any) -> dict[str, Any]:
        started = self._clock.monotonic()
        if provider.quarantined_until:
            provider.begin_probe()
        succeeded: bool | None = None
        try:
            answer = await self._clients[provider.node_id].call(*what, **options)
            succeeded = True
        except CommunityError as error:
            succeeded = error.code not in _ELSEWHERE
            raise
        finally:
            if succeeded is None:
                provider.end_probe()  # whoever gave up says nothing about the provider
            else:
                now = self._clock.monotonic()
                provider.observe(Outcome(now, now - started, succeeded))
        return answer
