"""Offers: accepted at bootstrap, kept alive by connections and heartbeats, ended when they expire.

Only a bootstrap creates an offer or changes what it offers (section 6.2).
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection

from accord.authority import store
from accord.authority.audit import AuditEvent
from accord.authority.facts import GatheredFacts
from accord.authority.manifests import Manifest
from accord.authority.revisions import ChangeSet, RevisionStore
from accord.authority.rules.records import (
    Deployment,
    Instance,
    Materialized,
    MaterialState,
    Offer,
    SessionHolder,
    SessionRecord,
)
from accord.authority.rules.status import (
    GRACE_SECONDS,
    HEARTBEAT_SECONDS,
    LEASE_SECONDS,
    Liveness,
    mark_heard,
    mark_lost,
    offer_liveness,
)
from accord.contracts import Bindings


@dataclass(frozen=True, slots=True)
class Ready:
    """What an instance needs to run.

    Attributes:
        bindings: The resources that are bound to the contract's aliases.
        settings: What a runtime must know of each of them, by kind and alias.
    """

    deployment: str
    instance: str
    contract_id: str
    digest: str
    bindings: Bindings
    settings: Mapping[str, Any]


def admit_offer(
    connection: Connection,
    change: ChangeSet,
    gathered: GatheredFacts,
    deployment: Deployment,
    instance: Instance,
) -> Ready | None:
    """Accept the offer if the deployment's resources are ready; else None.

    A digest that runs already continues with its bindings, whatever becomes of a newer one.
    """
    made = store.read_materialized(connection, deployment.id)
    if made is None:
        return None
    is_current = made.status is MaterialState.CURRENT and made.version >= deployment.version
    is_running = gathered.facts.digest in gathered.facts.running
    if not is_current and not (is_running and _is_bound(made, gathered.facts.contract)):
        return None
    contract_id, digest = gathered.facts.contract["id"], gathered.facts.digest
    before = store.read_offer(connection, instance.key, contract_id)
    is_first = not store.is_offered(connection, deployment.id, contract_id, digest)
    store.write_offer(
        connection, _offered(before, deployment, instance, contract_id, digest, change)
    )
    if before is None or before.digest != digest:
        change.touch()
    about = (deployment.id, contract_id)
    if is_first:
        previous = None if before is None or before.digest == digest else before.digest
        change.tell(AuditEvent("offered", instance.name, *about, digest, previous=previous))
    for ended in _ended(connection, before, deployment.id, contract_id, digest):
        change.tell(AuditEvent("withdrawn", instance.name, *about, ended))
    _write_session(connection, deployment, instance, contract_id, digest, change.now)
    return Ready(
        *(deployment.id, instance.name, contract_id, digest),
        made.bindings.get(contract_id, Bindings()),
        made.settings.get(contract_id, {}),
    )


def _is_bound(made: Materialized, contract: Manifest) -> bool:
    bound = made.bindings.get(contract["id"], Bindings())
    resources = contract.get("resources", {})
    return (
        resources.get("kv", {}).keys() <= bound.kv.keys()
        and resources.get("store", {}).keys() <= bound.store.keys()
        and contract.get("eventConsumers", {}).keys() <= bound.consumers.keys()
        and contract.get("jobs", {}).keys() <= bound.jobs.keys()
        and not (contract.get("operations") and bound.operations is None)
    )


def _offered(
    before: Offer | None,
    deployment: Deployment,
    instance: Instance,
    contract_id: str,
    digest: str,
    change: ChangeSet,
) -> Offer:
    """The accepted offer; an existing one is extended."""
    now = change.now
    if (
        before is not None
        and before.digest == digest
        and offer_liveness(before, now) is not Liveness.EXPIRED
    ):
        expires_at = max(before.expires_at, now + GRACE_SECONDS)
        return dataclasses.replace(before, expires_at=expires_at)
    about = (deployment.id, instance.key, contract_id, digest)
    return Offer(*about, live=False, accepted_at=now, stale_at=now, expires_at=now + GRACE_SECONDS)


def _ended(
    connection: Connection, before: Offer | None, deployment: str, contract_id: str, digest: str
) -> set[str]:
    """Delete offers that a migration ended; the digests that the deployment no longer offers.

    They end when the first instance of their replacement is ready, not before.
    """
    gone = set() if before is None or before.digest == digest else {before.digest}
    for offer in store.read_offers(connection, deployment=deployment, contract_id=contract_id):
        if offer.digest != digest and store.is_superseded(connection, deployment, offer.digest):
            store.delete_offer(connection, offer)
            gone.add(offer.digest)
    return {old for old in gone if not store.is_offered(connection, deployment, contract_id, old)}


def _write_session(
    connection: Connection,
    deployment: Deployment,
    instance: Instance,
    contract_id: str,
    digest: str,
    now: float,
) -> None:
    known = store.read_session(connection, instance.key)
    holder = SessionHolder(deployment.kind.value)
    created_at = now if known is None else known.created_at
    store.write_session(
        connection,
        SessionRecord(
            *(instance.key, holder, deployment.id, contract_id, digest),
            created_at=created_at,
        ),
    )


@dataclass(frozen=True, slots=True)
class Offers:
    """Reads offers, and updates them when connections and heartbeats come and go."""

    _revisions: RevisionStore

    async def all(
        self, deployment: str | None = None, contract_id: str | None = None
    ) -> Sequence[Offer]:
        """Every offer on record, including expired ones that were not dropped yet."""
        return await self._revisions.read(
            lambda c: store.read_offers(c, deployment=deployment, contract_id=contract_id)
        )

    async def heartbeat(self, key: str, contract_id: str, digest: str) -> bool:
        """Refresh an accepted offer of this digest; whether there is one."""

        def fits(offer: Offer) -> bool:
            return (offer.contract_id, offer.digest) == (contract_id, digest)

        return await self._hear(key, fits)

    async def connected(self, key: str, digest: str | None = None) -> bool:
        """Record that a session has connected; whether it offers anything."""
        return await self._hear(key, lambda offer: digest in (None, offer.digest))

    async def disconnected(self, key: str, digest: str | None = None) -> None:
        """Record that a connection ended; the grace window of its offers begins."""

        def work(connection: Connection, change: ChangeSet) -> None:
            for offer in store.read_offers(connection, instance=key):
                if offer.live and digest in (None, offer.digest):
                    store.write_offer(connection, mark_lost(offer, change.now))

        await self._revisions.change(work)

    async def expire(self, now: float) -> int:
        """Delete expired offers; how many there were."""
        if not await self._revisions.read(lambda c: store.read_offers(c, expired_by=now)):
            return 0

        def work(connection: Connection, change: ChangeSet) -> int:
            # Read again: a heartbeat may have come meanwhile.
            gone = store.read_offers(connection, expired_by=now)
            end_offers(connection, change, gone, "authority", "expired")
            return len(gone)

        return await self._revisions.change(work)

    async def _hear(self, key: str, fits: Callable[[Offer], bool]) -> bool:
        now = self._revisions.clock.now()

        def fitting(connection: Connection) -> list[Offer]:
            return [
                offer
                for offer in store.read_offers(connection, instance=key)
                if fits(offer) and offer_liveness(offer, now) is not Liveness.EXPIRED
            ]

        found = await self._revisions.read(fitting)
        # Skip the write if the offers were refreshed a moment ago.
        if all(
            offer.live and offer.expires_at > now + LEASE_SECONDS - HEARTBEAT_SECONDS / 2
            for offer in found
        ):
            return bool(found)

        def work(connection: Connection, _change: ChangeSet) -> bool:
            current = fitting(connection)
            for offer in current:
                store.write_offer(connection, mark_heard(offer, now))
            return bool(current)

        return await self._revisions.change(work)


def end_offers(
    connection: Connection,
    change: ChangeSet,
    gone: Iterable[Offer],
    by: str,
    how: Literal["withdrawn", "expired"] = "withdrawn",
) -> None:
    """Delete offers within a unit of work, and record digests that nobody offers any more."""
    ended = list(gone)
    for offer in ended:
        store.delete_offer(connection, offer)
    for deployment, contract_id, digest in sorted(
        {(offer.deployment, offer.contract_id, offer.digest) for offer in ended}
    ):
        if not store.is_offered(connection, deployment, contract_id, digest):
            change.tell(AuditEvent(how, by, deployment, contract_id, digest))
    if ended:
        change.touch()
