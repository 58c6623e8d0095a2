"""Deployments with what is desired of them, their instances, and what was made of them."""

from collections.abc import Collection, Iterable
from typing import Any

from sqlalchemy import Connection, RowMapping, delete, insert, select, update

from accord.authority.records import (
    Compatibility,
    Deployment,
    Instance,
    Kind,
    Materialized,
    MaterialState,
)
from accord.authority.stored.encoding import (
    decode,
    decode_bindings,
    decode_desired,
    encode,
    encode_bindings,
    encode_desired,
)
from accord.authority.tables import accepted, deployments, instances, materialized, superseded


def read(connection: Connection, deployment: str) -> Deployment | None:
    """One deployment."""
    query = select(deployments).where(deployments.c.id == deployment)
    row = connection.execute(query).mappings().first()
    if row is None:
        return None
    digests = select(accepted).where(accepted.c.deployment == deployment)
    contracts = {each.contract_id: each.digest for each in connection.execute(digests)}
    return _deployment(row, contracts)


def read_all(connection: Connection) -> list[Deployment]:
    """Every deployment, by id."""
    contracts: dict[str, dict[str, str]] = {}
    for each in connection.execute(select(accepted)):
        contracts.setdefault(each.deployment, {})[each.contract_id] = each.digest
    rows = connection.execute(select(deployments).order_by(deployments.c.id)).mappings()
    return [_deployment(row, contracts.get(row["id"], {})) for row in rows]


def create(connection: Connection, deployment: Deployment) -> None:
    """Keep a new deployment."""
    connection.execute(insert(deployments).values(**_values(deployment)))


def write(connection: Connection, deployment: Deployment) -> None:
    """Keep what has become of a deployment."""
    values = _values(deployment)
    connection.execute(update(deployments).where(deployments.c.id == deployment.id).values(values))
    connection.execute(delete(accepted).where(accepted.c.deployment == deployment.id))
    rows = [
        {"deployment": deployment.id, "contract_id": identity, "digest": digest}
        for identity, digest in deployment.desired.contracts.items()
    ]
    if rows:
        connection.execute(insert(accepted), rows)


def accepted_digests(connection: Connection) -> set[str]:
    """The digests that enabled deployments were accepted to implement."""
    query = (
        select(accepted.c.digest)
        .join(deployments, deployments.c.id == accepted.c.deployment)
        .where(deployments.c.disabled == 0)
    )
    return set(connection.execute(query).scalars())


def shapes_of(connection: Connection, ids: Iterable[str]) -> dict[str, str]:
    """For each contract id, the digest that an enabled deployment was accepted to implement."""
    query = (
        select(accepted.c.contract_id, accepted.c.digest)
        .join(deployments, deployments.c.id == accepted.c.deployment)
        .where(deployments.c.disabled == 0, accepted.c.contract_id.in_(sorted(ids)))
        .order_by(accepted.c.deployment.desc())
    )
    return {row.contract_id: row.digest for row in connection.execute(query)}


def is_superseded(connection: Connection, deployment: str, digest: str) -> bool:
    """Whether a migration has ended a digest on a deployment."""
    query = select(superseded).where(
        superseded.c.deployment == deployment, superseded.c.digest == digest
    )
    return connection.execute(query).first() is not None


def supersede(connection: Connection, deployment: str, old: Collection[str], new: str) -> None:
    """Let digests end and another one begin."""
    of = superseded.c.deployment == deployment
    connection.execute(delete(superseded).where(of, superseded.c.digest.in_((*old, new))))
    if old:
        rows = [{"deployment": deployment, "digest": digest} for digest in sorted(old)]
        connection.execute(insert(superseded), rows)


def read_instance(connection: Connection, key: str) -> Instance | None:
    """The instance of a key."""
    row = connection.execute(select(instances).where(instances.c.key == key)).mappings().first()
    return None if row is None else _instance(row)


def read_instances(connection: Connection, deployment: str) -> list[Instance]:
    """The instances of a deployment, by name."""
    query = select(instances).where(instances.c.deployment == deployment)
    rows = connection.execute(query.order_by(instances.c.name, instances.c.key)).mappings()
    return [_instance(row) for row in rows]


def write_instance(connection: Connection, instance: Instance) -> None:
    """Keep an instance, new or changed."""
    values = {
        "deployment": instance.deployment,
        "name": instance.name,
        "disabled": int(instance.disabled),
    }
    changed = update(instances).where(instances.c.key == instance.key).values(values)
    if not connection.execute(changed).rowcount:
        connection.execute(insert(instances).values(key=instance.key, **values))


def delete_instance(connection: Connection, key: str) -> None:
    """Forget an instance that has no offers."""
    connection.execute(delete(instances).where(instances.c.key == key))


def read_materialized(connection: Connection, deployment: str) -> Materialized | None:
    """What was made of a deployment."""
    query = select(materialized).where(materialized.c.deployment == deployment)
    row = connection.execute(query).mappings().first()
    return None if row is None else _materialized(row)


def write_materialized(connection: Connection, record: Materialized) -> None:
    """Keep what was made of a deployment."""
    values: dict[str, Any] = {
        "version": record.version,
        "status": record.status.value,
        "bindings": encode_bindings(record.bindings),
        "settings": encode(dict(record.settings)),
        "why": record.why,
    }
    of = materialized.c.deployment == record.deployment
    if not connection.execute(update(materialized).where(of).values(values)).rowcount:
        connection.execute(insert(materialized).values(deployment=record.deployment, **values))


def unreconciled(connection: Connection) -> list[str]:
    """The deployments of which something is still to be made, or failed to be."""
    query = (
        select(deployments.c.id)
        .outerjoin(materialized, materialized.c.deployment == deployments.c.id)
        .where(
            materialized.c.version.is_(None)
            | (materialized.c.version < deployments.c.version)
            | (materialized.c.status != MaterialState.CURRENT.value)
        )
        .order_by(deployments.c.id)
    )
    return list(connection.execute(query).scalars())


def _values(deployment: Deployment) -> dict[str, Any]:
    return {
        "id": deployment.id,
        "kind": deployment.kind.value,
        "compatibility": deployment.compatibility.value,
        "disabled": int(deployment.disabled),
        "desired": encode_desired(deployment.desired),
        "version": deployment.version,
    }


def _deployment(row: RowMapping, contracts: dict[str, str]) -> Deployment:
    return Deployment(
        row["id"],
        Kind(row["kind"]),
        Compatibility(row["compatibility"]),
        bool(row["disabled"]),
        decode_desired(row["desired"], contracts),
        row["version"],
    )


def _instance(row: RowMapping) -> Instance:
    return Instance(row["key"], row["deployment"], row["name"], bool(row["disabled"]))


def _materialized(row: RowMapping) -> Materialized:
    return Materialized(
        row["deployment"],
        row["version"],
        MaterialState(row["status"]),
        decode_bindings(row["bindings"]),
        decode(row["settings"]),
        row["why"],
    )
