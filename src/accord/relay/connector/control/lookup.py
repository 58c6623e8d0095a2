"""The facts of one event, put together from memory.

Owns which facts an event needs: those of its place, its author, the holder of its channel and their
instances, and nothing of anybody else. Instances that are revoked or switched off are not among
them. What an event of the same place and author needed is kept until something changes.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from accord.kernel.clock import Clock
from accord.relay.connector.control import loading
from accord.relay.connector.control.cache import Cache
from accord.relay.connector.control.names import is_name
from accord.relay.connector.control.visibility import Visibility
from accord.relay.connector.platform import Inbound
from accord.relay.gate.facts import (
    Account,
    Channel,
    Facts,
    Grant,
    Principal,
    Route,
    Seat,
    Sight,
    User,
    View,
)
from accord.relay.wire.policy import RelevancePolicy

_MOST: Final = 50_000
_FOREVER: Final = float("inf")
_NOTHING: Final = Facts()


class _Place(NamedTuple):
    """What the facts of an event depend on."""

    platform: str
    discriminator: str
    scope_id: str | None
    chat_id: str
    parent_id: str | None
    is_dm: bool
    author: str


class Lookup:
    """Answers from memory what the gate goes by."""

    def __init__(self, cache: Cache, visibility: Visibility, clock: Clock) -> None:
        self._cache = cache
        self._visibility = visibility
        self._clock = clock
        self._composed: dict[_Place, tuple[Facts, float]] = {}
        self._generation = -1

    async def facts(self, inbound: Inbound) -> Facts:
        """What is known that concerns an event."""
        if not self._cache.is_fresh:
            await self._cache.refresh()
        source = inbound.event.source
        place = _Place(
            inbound.platform,
            inbound.route_key or source.scope_id or source.chat_id,
            source.scope_id,
            source.chat_id,
            source.parent_chat_id,
            source.is_dm,
            source.user_id or "",
        )
        if self._generation != self._cache.generation:
            self._composed.clear()
            self._generation = self._cache.generation
        known = self._composed.get(place)
        if known is not None and self._clock.monotonic() < known[1]:
            return known[0]
        generation = self._generation
        composed = await self._compose(place)
        if generation == self._cache.generation:
            if len(self._composed) >= _MOST:
                del self._composed[next(iter(self._composed))]
            self._composed[place] = composed
        return composed[0]

    def flush_visibility(self, platform: str, scope_id: str | None) -> None:
        """Forget who can see what."""
        self._visibility.flush(platform, scope_id)
        self._composed.clear()
        self._cache.disturb()

    async def person(self, platform: str, user_id: str) -> loading.Person:
        """What is known of an account."""
        return await self._cache.get(
            ("user", platform, user_id),
            lambda connection: loading.person(connection, platform, user_id),
        )

    async def profile(self, instance: str) -> loading.Profile | None:
        """What is known of an instance."""
        return await self._cache.get(
            ("instance", instance), lambda connection: loading.profile(connection, instance)
        )

    async def codes(self) -> Mapping[bytes, int]:
        """The digests of the link codes that are out."""
        return await self._cache.get(("codes",), loading.codes)

    async def _compose(self, place: _Place) -> tuple[Facts, float]:
        platform, author = place.platform, place.author
        given = (place.scope_id, place.parent_id, author)
        if not (
            is_name(platform)
            and is_name(place.discriminator)
            and is_name(place.chat_id)
            and all(is_name(each) for each in given if each)
        ):
            return _NOTHING, _FOREVER  # such ids were never written, and one engine refuses them
        tenant = await self._route(platform, place.discriminator)
        person = await self.person(platform, author)
        home = person.home
        home_tenant = home.tenant if home is not None and place.is_dm else None
        bindings: dict[User, tuple[str, ...]] = {}
        live: dict[str, loading.Profile] = {}
        for each in filter(None, dict.fromkeys((tenant, home_tenant))):
            bindings[User(each, platform, author)] = await self._live(
                person.bound.get(each, ()), each, live
            )
        voices = await self._voices(person, tenant or home_tenant)
        grants: dict[Channel, Grant] = {}
        views: list[View] = []
        if tenant is not None and not place.is_dm:
            if bindings[User(tenant, platform, author)]:
                views.append(View(platform, place.scope_id, place.chat_id, author))
            for channel in filter(None, (place.chat_id, place.parent_id)):
                held = await self._holder(platform, place.scope_id or "", channel)
                if held is None or held.tenant != tenant:
                    continue
                if not await self._live((held.instance,), tenant, live):
                    continue
                key = Channel(tenant, platform, place.scope_id, channel)
                grants[key] = Grant(held.instance, held.owner)
                owner = await self.person(platform, held.owner)
                bindings[User(tenant, platform, held.owner)] = await self._live(
                    owner.bound.get(tenant, ()), tenant, live
                )
                views.append(View(platform, place.scope_id, place.chat_id, held.owner))
        visibility: dict[View, Sight] = {}
        until = _FOREVER
        for view in dict.fromkeys(views):
            visibility[view], lasting = await self._visibility.sight(view)
            until = min(until, lasting)
        principals: dict[Seat, Principal] = {}
        relevance: dict[Seat, RelevancePolicy] = {}
        for instance, profile in live.items():
            seat = Seat(profile.record.tenant, instance, platform)
            if platform in profile.principals:
                principals[seat] = profile.principals[platform]
            if platform in profile.relevance:
                relevance[seat] = profile.relevance[platform]
        facts = Facts(
            routes={Route(platform, place.discriminator): tenant} if tenant else {},
            bindings=bindings,
            dm_defaults={Account(platform, author): home} if home_tenant and home else {},
            grants=grants,
            principals=principals,
            visibility=visibility,
            relevance=relevance,
            voices={Account(platform, author): voices} if voices else {},
        )
        return facts, until

    async def _voices(self, person: loading.Person, tenant: str | None) -> frozenset[str]:
        """The tenant's own instances that speak through an account.

        What another tenant says of its bots must not make a bot of somebody here.
        """
        if person.voices is None or tenant is None:
            return frozenset()
        return frozenset(await self._live(tuple(sorted(person.voices)), tenant, {}))

    async def _live(
        self, instances: tuple[str, ...], tenant: str, live: dict[str, loading.Profile]
    ) -> tuple[str, ...]:
        """Those of the instances that are the tenant's and may do anything at all."""
        for instance in instances:
            profile = await self.profile(instance)
            if profile is not None and profile.record.live and profile.record.tenant == tenant:
                live[instance] = profile
        return tuple(instance for instance in instances if instance in live)

    async def _route(self, platform: str, key: str) -> str | None:
        return await self._cache.get(
            ("route", platform, key), lambda connection: loading.route(connection, platform, key)
        )

    async def _holder(self, platform: str, scope_id: str, channel: str) -> loading.Held | None:
        return await self._cache.get(
            ("channel", platform, scope_id, channel),
            lambda connection: loading.holder(connection, platform, scope_id, channel),
        )
