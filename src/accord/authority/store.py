"""Queries on the authority's tables; nothing here decides.

Each function takes a connection and belongs to the caller's unit of work.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

from sqlalchemy import (
    Connection,
    RowMapping,
    Table,
    and_,
    delete,
    exists,
    func,
    insert,
    select,
    update,
)

from accord.authority.rules.catalog import GRACE_SECONDS, ActiveDigest, Liveness
from accord.authority.rules.records import (
    Classification,
    Compatibility,
    Deployment,
    DeploymentKind,
    Desired,
    Instance,
    Materialized,
    MaterialState,
    Offer,
    Plan,
    PlanState,
    SessionHolder,
    SessionRecord,
)
from accord.authority.tables import (
    accepted,
    activations,
    contracts,
    deployments,
    instances,
    logins,
    materialized,
    offers,
    plans,
    sessions,
    superseded,
)
from accord.contracts.permissions import Bindings, ConsumerBinding, QueueBinding
from accord.kernel import canonical


@dataclass(frozen=True, slots=True)
class StateCounts:
    """Counts by state."""

    plans: Counter[tuple[str]] = field(default_factory=Counter)
    offers: Counter[tuple[str]] = field(default_factory=Counter)
    deployments: Counter[tuple[str]] = field(default_factory=Counter)


_NEW = "new"
_DISABLED = "disabled"


def count_states(connection: Connection, now: float) -> StateCounts:
    """Counts at a time; a state that nothing is in counts 0."""
    found = StateCounts(
        Counter({(each.value,): 0 for each in PlanState}),
        Counter({(each.value,): 0 for each in Liveness}),
        Counter(
            {(each,): 0 for each in (*(each.value for each in MaterialState), _NEW, _DISABLED)}
        ),
    )
    for state, count in connection.execute(
        select(plans.c.state, func.count()).group_by(plans.c.state)
    ):
        found.plans[(state,)] += count
    # The same as `offer_liveness`, but in SQL: there may be very many.
    total = func.count()
    expired = connection.execute(select(total).where(offers.c.expires_at <= now)).scalar_one()
    live = connection.execute(
        select(total).where(offers.c.live == 1, offers.c.expires_at - GRACE_SECONDS > now)
    ).scalar_one()
    every = connection.execute(select(total).select_from(offers)).scalar_one()
    found.offers[(Liveness.EXPIRED.value,)] = expired
    found.offers[(Liveness.LIVE.value,)] = live
    found.offers[(Liveness.STALE.value,)] = every - expired - live
    made = (
        select(deployments.c.disabled, materialized.c.status, total)
        .join(materialized, materialized.c.deployment == deployments.c.id, isouter=True)
        .group_by(deployments.c.disabled, materialized.c.status)
    )
    for is_disabled, status, count in connection.execute(made):
        found.deployments[(_DISABLED if is_disabled else status or _NEW,)] += count
    return found


def _columns(record: Any, **encoded: Any) -> dict[str, Any]:
    """The fields of a record by name, some of them as they are stored."""
    return {each.name: getattr(record, each.name) for each in fields(record)} | encoded


def _upsert(connection: Connection, table: Table, values: dict[str, Any]) -> None:
    of = and_(*(column == values[column.name] for column in table.primary_key.columns))
    if not connection.execute(update(table).where(of).values(values)).rowcount:
        connection.execute(insert(table).values(values))


def encode(value: Any) -> str:
    """Encode JSON for a column."""
    return canonical.encode(value).decode()


def decode(text: str) -> Any:
    """Decode JSON of a column."""
    return canonical.decode(text.encode())


def encode_names(values: frozenset[str]) -> str:
    """Encode a set of names."""
    return encode(sorted(values))


def decode_names(text: str) -> frozenset[str]:
    """Decode a set of names."""
    return frozenset(decode(text))


def encode_desired(desired: Desired) -> str:
    """Encode desired state without its contracts, which have a table of their own."""
    return encode(
        {
            "surfaces": sorted(desired.surfaces),
            "capabilities": sorted(desired.capabilities),
            "resources": [
                [*key, dict(desired.resources[key])] for key in sorted(desired.resources)
            ],
            "shapes": dict(desired.shapes),
        }
    )


def decode_desired(text: str, contracts: Mapping[str, str]) -> Desired:
    """Decode desired state."""
    read = decode(text)
    return Desired(
        contracts=contracts,
        surfaces=frozenset(read["surfaces"]),
        capabilities=frozenset(read["capabilities"]),
        resources={(kind, contract, alias): it for kind, contract, alias, it in read["resources"]},
        shapes=read["shapes"],
    )


def encode_bindings(bindings: Mapping[str, Bindings]) -> str:
    """Encode bindings by contract id."""
    return encode({identity: asdict(bound) for identity, bound in bindings.items()})


def decode_bindings(text: str) -> dict[str, Bindings]:
    """Decode bindings."""
    return {
        identity: Bindings(
            **{
                **bound,
                "consumers": {
                    alias: ConsumerBinding(**it) for alias, it in bound["consumers"].items()
                },
                "jobs": {alias: QueueBinding(**it) for alias, it in bound["jobs"].items()},
            }
        )
        for identity, bound in decode(text).items()
    }


def read_deployment(connection: Connection, deployment: str) -> Deployment | None:
    """One deployment."""
    query = select(deployments).where(deployments.c.id == deployment)
    row = connection.execute(query).mappings().first()
    if row is None:
        return None
    digests = select(accepted).where(accepted.c.deployment == deployment)
    contracts = {each.contract_id: each.digest for each in connection.execute(digests)}
    return _deployment(row, contracts)


def read_deployments(connection: Connection) -> list[Deployment]:
    """Every deployment, by id."""
    contracts: dict[str, dict[str, str]] = {}
    for each in connection.execute(select(accepted)):
        contracts.setdefault(each.deployment, {})[each.contract_id] = each.digest
    rows = connection.execute(select(deployments).order_by(deployments.c.id)).mappings()
    return [_deployment(row, contracts.get(row["id"], {})) for row in rows]


def insert_deployment(connection: Connection, deployment: Deployment) -> None:
    """Insert a deployment."""
    connection.execute(insert(deployments).values(**_deployment_values(deployment)))


def write_deployment(connection: Connection, deployment: Deployment) -> None:
    """Update a deployment and its accepted contracts."""
    values = _deployment_values(deployment)
    connection.execute(update(deployments).where(deployments.c.id == deployment.id).values(values))
    connection.execute(delete(accepted).where(accepted.c.deployment == deployment.id))
    rows = [
        {"deployment": deployment.id, "contract_id": identity, "digest": digest}
        for identity, digest in deployment.desired.contracts.items()
    ]
    if rows:
        connection.execute(insert(accepted), rows)


def accepted_digests(connection: Connection) -> set[str]:
    """The accepted digests of enabled deployments."""
    query = (
        select(accepted.c.digest)
        .join(deployments, deployments.c.id == accepted.c.deployment)
        .where(deployments.c.disabled == 0)
    )
    return set(connection.execute(query).scalars())


def read_shapes(connection: Connection, ids: Iterable[str]) -> dict[str, str]:
    """For each contract id, a digest that an enabled deployment was accepted to implement."""
    query = (
        select(accepted.c.contract_id, accepted.c.digest)
        .join(deployments, deployments.c.id == accepted.c.deployment)
        .where(deployments.c.disabled == 0, accepted.c.contract_id.in_(sorted(ids)))
        .order_by(accepted.c.deployment.desc())
    )
    return {row.contract_id: row.digest for row in connection.execute(query)}


def accepted_elsewhere(connection: Connection, deployment: str, contract_id: str) -> frozenset[str]:
    """The digests of a contract id that other deployments were accepted to implement."""
    query = select(accepted.c.digest).where(
        accepted.c.contract_id == contract_id, accepted.c.deployment != deployment
    )
    return frozenset(connection.execute(query).scalars())


def is_superseded(connection: Connection, deployment: str, digest: str) -> bool:
    """Whether a migration has ended a digest on a deployment."""
    query = select(superseded).where(
        superseded.c.deployment == deployment, superseded.c.digest == digest
    )
    return connection.execute(query).first() is not None


def supersede(connection: Connection, deployment: str, old: Collection[str], new: str) -> None:
    """Mark digests as ended by a migration to another one."""
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
    """Insert or update an instance."""
    _upsert(connection, instances, _columns(instance, disabled=int(instance.disabled)))


def delete_instance(connection: Connection, key: str) -> None:
    """Delete an instance that has no offers."""
    connection.execute(delete(instances).where(instances.c.key == key))


def read_materialized(connection: Connection, deployment: str) -> Materialized | None:
    """The resources that were made for a deployment."""
    query = select(materialized).where(materialized.c.deployment == deployment)
    row = connection.execute(query).mappings().first()
    return None if row is None else _materialized(row)


def write_materialized(connection: Connection, record: Materialized) -> None:
    """Insert or update the record of resources."""
    settings = encode(dict(record.settings))
    values = _columns(record, bindings=encode_bindings(record.bindings), settings=settings)
    _upsert(connection, materialized, values)


def read_unreconciled(connection: Connection) -> list[str]:
    """The deployments whose resources are missing, out of date or failed."""
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


def _deployment_values(deployment: Deployment) -> dict[str, Any]:
    return {
        "id": deployment.id,
        "kind": deployment.kind.value,
        "compatibility": deployment.compatibility.value,
        "disabled": int(deployment.disabled),
        "desired": encode_desired(deployment.desired),
        "version": deployment.version,
        "calls": encode_names(deployment.calls) if deployment.calls else None,
    }


def _deployment(row: RowMapping, contracts: dict[str, str]) -> Deployment:
    return Deployment(
        row["id"],
        DeploymentKind(row["kind"]),
        Compatibility(row["compatibility"]),
        bool(row["disabled"]),
        decode_desired(row["desired"], contracts),
        row["version"],
        decode_names(row["calls"] or "[]"),
    )


def _instance(row: RowMapping) -> Instance:
    return Instance(**{**row, "disabled": bool(row["disabled"])})


def _materialized(row: RowMapping) -> Materialized:
    return Materialized(
        **{
            **row,
            "status": MaterialState(row["status"]),
            "bindings": decode_bindings(row["bindings"]),
            "settings": decode(row["settings"]),
        }
    )


_AT_ONCE = 500


def read_manifests(connection: Connection, digests: Collection[str]) -> dict[str, str]:
    """The canonical JSON of each stored digest."""
    found: dict[str, str] = {}
    for some in _slices(sorted(digests)):
        query = select(contracts.c.digest, contracts.c.manifest).where(contracts.c.digest.in_(some))
        found.update((row.digest, row.manifest) for row in connection.execute(query))
    return found


def read_manifest_digests(connection: Connection, contract_id: str) -> list[str]:
    """The stored digests of a contract id."""
    query = select(contracts.c.digest).where(contracts.c.contract_id == contract_id)
    return list(connection.execute(query.order_by(contracts.c.digest)).scalars())


def known_contract_ids(connection: Connection, ids: Collection[str]) -> frozenset[str]:
    """The contract ids of which a manifest is stored."""
    found: set[str] = set()
    for some in _slices(sorted(ids)):
        query = select(contracts.c.contract_id).where(contracts.c.contract_id.in_(some))
        found.update(connection.execute(query.distinct()).scalars())
    return frozenset(found)


def insert_manifest(
    connection: Connection,
    digest: str,
    contract_id: str,
    manifest: str,
    guest_since: float | None = None,
) -> bool:
    """Store a manifest; False if it was stored before."""
    if connection.execute(select(contracts.c.digest).where(contracts.c.digest == digest)).first():
        return False
    values = {"digest": digest, "contract_id": contract_id, "manifest": manifest}
    connection.execute(insert(contracts).values(guest_since=guest_since, **values))
    return True


def replace_manifest(connection: Connection, digest: str, manifest: str) -> None:
    """Replace the manifest of a digest by one with other display texts."""
    of = contracts.c.digest == digest
    connection.execute(update(contracts).where(of).values(manifest=manifest))


def adopt_manifest(connection: Connection, digest: str) -> None:
    """Keep a manifest that a guest presented."""
    of = (contracts.c.digest == digest) & contracts.c.guest_since.is_not(None)
    connection.execute(update(contracts).where(of).values(guest_since=None))


def count_guest_manifests(connection: Connection) -> tuple[int, int]:
    """The number of guests' manifests, and their characters."""
    query = select(func.count(), func.coalesce(func.sum(func.length(contracts.c.manifest)), 0))
    row = connection.execute(query.where(contracts.c.guest_since.is_not(None))).one()
    return int(row[0]), int(row[1])


def has_guest_manifests(connection: Connection, before: float) -> bool:
    """Whether a guest's manifest is older than `before`."""
    query = select(contracts.c.digest).where(contracts.c.guest_since < before)
    return connection.execute(query.limit(1)).first() is not None


def prune_guest_manifests(connection: Connection, before: float) -> list[str]:
    """Delete guests' manifests that are older and that nothing refers to; their digests."""
    digest = contracts.c.digest
    query = select(digest).where(
        contracts.c.guest_since < before,
        *(
            ~exists().where(table.c.digest == digest)
            for table in (offers, accepted, plans, sessions, logins, activations)
        ),
    )
    gone = list(connection.execute(query).scalars())
    delete_manifests(connection, gone)
    return gone


def is_manifest_awaited(connection: Connection, digest: str) -> bool:
    """Whether an offer or an accepted contract refers to this digest."""
    return bool(
        connection.execute(
            select(
                exists().where(offers.c.digest == digest)
                | exists().where(accepted.c.digest == digest)
            )
        ).scalar_one()
    )


def delete_manifests(connection: Connection, digests: Collection[str]) -> None:
    """Delete damaged manifests."""
    for some in _slices(sorted(digests)):
        connection.execute(delete(contracts).where(contracts.c.digest.in_(some)))


def _slices(keys: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(keys), _AT_ONCE):
        yield keys[start : start + _AT_ONCE]


def read_offer(connection: Connection, instance: str, contract_id: str) -> Offer | None:
    """The offer of an instance for a contract."""
    query = select(offers).where(offers.c.instance == instance, offers.c.contract_id == contract_id)
    row = connection.execute(query).mappings().first()
    return None if row is None else _offer(row)


def read_offers(
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


def read_active_offers(
    connection: Connection, now: float, contract_id: str | None = None
) -> list[Offer]:
    """The active offers: unexpired, of an enabled instance of an enabled deployment."""
    query = _enabled(select(offers), now)
    if contract_id is not None:
        query = query.where(offers.c.contract_id == contract_id)
    return [_offer(row) for row in connection.execute(query).mappings()]


def read_active_digests(connection: Connection, now: float) -> list[ActiveDigest]:
    """The digests of active offers, with the time of the first acceptance."""
    since = func.min(offers.c.accepted_at).label("since")
    query = _enabled(select(offers.c.contract_id, offers.c.digest, since), now)
    rows = connection.execute(query.group_by(offers.c.contract_id, offers.c.digest))
    return [ActiveDigest(row.contract_id, row.digest, row.since) for row in rows]


def disabled_instances(connection: Connection, keys: Sequence[str]) -> set[str]:
    """Those of some instances that are disabled, or whose deployment is."""
    query = (
        select(instances.c.key)
        .join(deployments, deployments.c.id == instances.c.deployment)
        .where(
            instances.c.key.in_(keys), (instances.c.disabled != 0) | (deployments.c.disabled != 0)
        )
    )
    return set(connection.execute(query).scalars())


def write_offer(connection: Connection, offer: Offer) -> None:
    """Insert or update an offer."""
    _upsert(connection, offers, _columns(offer, live=int(offer.live)))


def delete_offer(connection: Connection, offer: Offer) -> None:
    """Delete an offer."""
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
    return Offer(**{**row, "live": bool(row["live"])})


MAX_DECIDED: Final = 100
"""Decided plans that are kept of one deployment."""


def read_plan(connection: Connection, plan: str) -> Plan | None:
    """One plan."""
    row = connection.execute(select(plans).where(plans.c.id == plan)).mappings().first()
    return None if row is None else _plan(row)


def read_plans(
    connection: Connection,
    *,
    deployment: str | None = None,
    state: PlanState | None = None,
    requester: str | None = None,
    limit: int | None = None,
) -> list[Plan]:
    """Plans, the newest first."""
    query = select(plans).order_by(plans.c.created_at.desc(), plans.c.id.desc()).limit(limit)
    if deployment is not None:
        query = query.where(plans.c.deployment == deployment)
    if state is not None:
        query = query.where(plans.c.state == state.value)
    if requester is not None:
        query = query.where(plans.c.requester == requester)
    return [_plan(row) for row in connection.execute(query).mappings()]


def write_plan(connection: Connection, plan: Plan) -> None:
    """Insert or update a plan."""
    _upsert(connection, plans, _columns(plan, delta=encode(dict(plan.delta))))


def prune_plans(connection: Connection, deployment: str) -> None:
    """Delete all but the newest decided plans of a deployment; the history keeps them."""
    decided = select(plans.c.id).where(
        plans.c.deployment == deployment, plans.c.state != PlanState.PENDING.value
    )
    older = decided.order_by(plans.c.created_at.desc(), plans.c.id.desc()).offset(MAX_DECIDED)
    gone = list(connection.execute(older).scalars())
    if gone:
        connection.execute(delete(plans).where(plans.c.id.in_(gone)))


def delete_plan(connection: Connection, plan: str) -> None:
    """Delete a pending plan."""
    connection.execute(delete(plans).where(plans.c.id == plan))


def _plan(row: RowMapping) -> Plan:
    return Plan(
        **{
            **row,
            "classification": Classification(row["classification"]),
            "state": PlanState(row["state"]),
            "delta": decode(row["delta"]),
        }
    )


def read_session(connection: Connection, key: str) -> SessionRecord | None:
    """The session of a key."""
    row = connection.execute(select(sessions).where(sessions.c.key == key)).mappings().first()
    return None if row is None else _session(row)


def read_sessions(
    connection: Connection, *, subject: str | None = None, holder: SessionHolder | None = None
) -> list[SessionRecord]:
    """Sessions, the oldest first."""
    query = select(sessions).order_by(sessions.c.created_at, sessions.c.key)
    if subject is not None:
        query = query.where(sessions.c.subject == subject)
    if holder is not None:
        query = query.where(sessions.c.holder == holder.value)
    return [_session(row) for row in connection.execute(query).mappings()]


def write_session(connection: Connection, session: SessionRecord) -> None:
    """Insert or update a session."""
    surfaces = None if session.surfaces is None else encode_names(session.surfaces)
    values = _columns(session, capabilities=encode_names(session.capabilities), surfaces=surfaces)
    _upsert(connection, sessions, values)


def _session(row: RowMapping) -> SessionRecord:
    surfaces = row["surfaces"]
    return SessionRecord(
        **{
            **row,
            "holder": SessionHolder(row["holder"]),
            "capabilities": decode_names(row["capabilities"]),
            "surfaces": None if surfaces is None else decode_names(surfaces),
        }
    )
