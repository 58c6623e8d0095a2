"""Call the best provider of a capability."""

from collections.abc import Mapping
from typing import Any

from accord.community.client import Client
from accord.community.errors import Code, CommunityError
from accord.community.rules import routing
from accord.community.rules.routing import CallOutcome, CapabilityProvider
from accord.kernel.clock import Clock

# The provider failed or has no room; another one may succeed.
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
# Refused before anything was done, so any call may go to another provider.
_UNTOUCHED = frozenset({Code.CAPACITY_EXCEEDED, Code.RATE_LIMITED})


class Router:
    """The known providers of a community's capabilities, for one caller."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._clients: dict[str, Client] = {}
        self._providers: dict[str, dict[str, CapabilityProvider]] = {}

    def add(self, capability: str, client: Client, *, local: bool = False, load: float = 0) -> None:
        """Add a provider named by a verified manifest. The caller closes the client."""
        self._clients[client.node_id] = client
        known = self._providers.setdefault(capability, {})
        provider = known.setdefault(client.node_id, CapabilityProvider(client.node_id, local))
        provider.load, provider.seen = load, self._clock.monotonic()

    def remove(self, node_id: str) -> None:
        """Remove a node."""
        self._clients.pop(node_id, None)
        for known in self._providers.values():
            known.pop(node_id, None)

    def providers(self, capability: str) -> list[CapabilityProvider]:
        """The providers that may be called, best first."""
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
        """Call the best provider; after a failure the next, if repeating the call is safe.

        Raises the last provider's error; `not_found` if there is no provider.
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

    async def _observed(
        self, provider: CapabilityProvider, *what: Any, **options: Any
    ) -> dict[str, Any]:
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
                provider.end_probe()  # a cancelled call says nothing about the provider
            else:
                now = self._clock.monotonic()
                provider.observe(CallOutcome(now, now - started, succeeded))
        return answer
