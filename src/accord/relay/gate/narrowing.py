"""Which facts bear on one event.

A connector may hold the facts of many tenants in memory; a record of a decision wants the few that
it was made from, and of long lists only what could matter. Nothing is decided here.
"""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from accord.relay.gate import layers
from accord.relay.gate.facts import Account, Channel, Event, Facts, Seat, User, View
from accord.relay.wire.policy import RelevancePolicy

K = TypeVar("K", bound=tuple[Any, ...])
V = TypeVar("V")


def about(event: Event, facts: Facts) -> Facts:
    """The facts that bear on an event; deciding by them gives the same as by all."""
    platform, author = event.platform, event.author or ""
    account = Account(platform, author)
    routes = _only(facts.routes, [event.discriminator])
    homes = _only(facts.dm_defaults, [account] if event.is_dm else [])
    voices = _only(facts.voices, [account])
    tenant, _ = layers.find_tenant(event, facts)
    if tenant is None:
        return Facts(routes=routes, dm_defaults=homes)
    channels = (
        [event.chat_id]
        if event.parent_chat_id is None
        else [
            event.chat_id,
            event.parent_chat_id,
        ]
    )
    grants = _only(
        facts.grants,
        [Channel(tenant, platform, event.scope_id, channel) for channel in channels],
    )
    owners = {grant.owner for grant in grants.values() if grant.owner is not None}
    bindings = _only(
        facts.bindings, [User(tenant, platform, user) for user in sorted({author, *owners})]
    )
    instances = {grant.instance for grant in grants.values()}
    instances.update(bindings.get(User(tenant, platform, author), ()))
    seats = [Seat(tenant, instance, platform) for instance in sorted(instances)]
    views = [
        View(platform, event.scope_id, event.chat_id, user) for user in sorted({author, *owners})
    ]
    kept = frozenset(instances)
    return Facts(
        routes,
        bindings,
        homes,
        grants,
        {
            seat: each._replace(allow=each.allow & {author})
            for seat, each in _only(facts.principals, seats).items()
        },
        _only(facts.visibility, views),
        {
            seat: RelevancePolicy(
                each.require_address, each.free_response_scopes & {*channels}, each.allow_other_bots
            )
            for seat, each in _only(facts.relevance, seats).items()
        },
        {account: spoken & kept for account, spoken in voices.items()},
    )


def _only(known: Mapping[K, V], keys: Iterable[K]) -> dict[K, V]:
    return {key: known[key] for key in keys if key in known}
