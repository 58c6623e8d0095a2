"""Offers, and which digests they make active."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, RowMapping, delete, func, insert, select, update

from accord.authority.decisions.catalog import Active
from accord.authority.records import Offer
from accord.authority.tables import deployments, instances, offers


def read(connection: Connection, instance: str, contract_id: str) -> Offer | None:
    """What an instance offers of a contract."""
    query = select(offers).where(offers.c.instance == instance, offers.c.contract_id == contract_id)
    row = connection.execute(query).mappings().first()
    return None if row is None else _offer(row)


def read_some(
    connection: Connection,
    *,
    deployment: str | None = None,
    contract_id: str | None = None,
    instance: str | None = None,
    expired_by: float | None = None,
) -> list[Offer]:
    """Offers, by contract and instance."""
    query = select(offers).order_by(offers.c.contract_id, offers.c.instance)
    if deployment is not None:
        query = query.where(offers.c.deployment == deployment)
    if contract_id is not None:
        query = query.where(offers.c.contract_id == contract_id)
    if instance is not None:
        query = query.where(offers.c.instance == instance)
    if expired_by is not None:
        query = query.where(offers.c.expires_at <= expired_by)
    return [_offer(row) for row in connection.execute(query).mappings()]


def active(connection: Connection, now: float, contract_id: str | None = None) -> list[Offer]:
    """The offers that count: unexpired, of an enabled instance of an enabled deployment."""
    query = _enabled(select(offers), now)
    if contract_id is not None:
        query = query.where(offers.c.contract_id == contract_id)
    return [_offer(row) for row in connection.execute(query).mappings()]


def active_digests(connection: Connection, now: float) -> list[Active]:
    """The digests that active offers have, and since when."""
    since = func.min(offers.c.accepted_at).label("since")
    query = _enabled(select(offers.c.contract_id, offers.c.digest, since), now)
    rows = connection.execute(query.group_by(offers.c.contract_id, offers.c.digest))
    return [Active(row.contract_id, row.digest, row.since) for row in rows]


def disabled_instances(connection: Connection, keys: Sequence[str]) -> set[str]:
    """Those of some instances that are disabled, or whose deployment is."""
    query = (
        select(instances.c.key)
        .join(deployments, deployments.c.id == instances.c.deployment)
        .where(
            instances.c.key.in_(keys),
            (instances.c.disabled != 0) | (deployments.c.disabled != 0),
        )
    )
    return set(connection.execute(query).scalars())


def write(connection: Connection, offer: Offer) -> None:
    """Keep an offer, new or changed."""
    values: dict[str, Any] = {**asdict(offer), "live": int(offer.live)}
    of = (offers.c.instance == offer.instance) & (offers.c.contract_id == offer.contract_id)
    if not connection.execute(update(offers).where(of).values(values)).rowcount:
        connection.execute(insert(offers).values(values))


def drop(connection: Connection, offer: Offer) -> None:
    """Forget an offer."""
    connection.execute(
        delete(offers).where(
            offers.c.instance == offer.instance, offers.c.contract_id == offer.contract_id
        )
    )


def is_offered(connection: Connection, deployment: str, contract_id: str, digest: str) -> bool:
    """Whether any instance of a deployment offers a digest."""
    query = select(offers.c.instance).where(
        offers.c.deployment == deployment,
        offers.c.contract_id == contract_id,
        offers.c.digest == digest,
    )
    return connection.execute(query.limit(1)).first() is not None


def _enabled(query: Any, now: float) -> Any:
    return (
        query.join(instances, instances.c.key == offers.c.instance)
        .join(deployments, deployments.c.id == offers.c.deployment)
        .where(offers.c.expires_at > now, instances.c.disabled == 0, deployments.c.disabled == 0)
    )


def _offer(row: RowMapping) -> Offer:
    return Offer(
        row["deployment"],
        row["instance"],
        row["contract_id"],
        row["digest"],
        bool(row["live"]),
        row["accepted_at"],
        row["stale_at"],
        row["expires_at"],
    )
