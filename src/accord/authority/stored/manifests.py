"""Manifests by digest. What is read may be damaged: whoever reads it proves it by its digest."""

from collections.abc import Collection, Iterator

from sqlalchemy import Connection, delete, exists, insert, select

from accord.authority.tables import accepted, contracts, offers

_AT_ONCE = 500


def read_texts(connection: Connection, digests: Collection[str]) -> dict[str, str]:
    """The canonical JSON of each digest that is kept."""
    found: dict[str, str] = {}
    for some in _slices(sorted(digests)):
        query = select(contracts.c.digest, contracts.c.manifest).where(contracts.c.digest.in_(some))
        found.update((row.digest, row.manifest) for row in connection.execute(query))
    return found


def read_digests(connection: Connection, contract_id: str) -> list[str]:
    """The digests of a lineage that are kept."""
    query = select(contracts.c.digest).where(contracts.c.contract_id == contract_id)
    return list(connection.execute(query.order_by(contracts.c.digest)).scalars())


def known_ids(connection: Connection, ids: Collection[str]) -> frozenset[str]:
    """Those of some contract ids of which a manifest is kept."""
    found: set[str] = set()
    for some in _slices(sorted(ids)):
        query = select(contracts.c.contract_id).where(contracts.c.contract_id.in_(some))
        found.update(connection.execute(query.distinct()).scalars())
    return frozenset(found)


def put(connection: Connection, digest: str, contract_id: str, manifest: str) -> bool:
    """Keep a manifest; whether it was not kept before."""
    if connection.execute(select(contracts.c.digest).where(contracts.c.digest == digest)).first():
        return False
    values = {"digest": digest, "contract_id": contract_id, "manifest": manifest}
    connection.execute(insert(contracts).values(**values))
    return True


def is_awaited(connection: Connection, digest: str) -> bool:
    """Whether something that counts lacks this manifest, or lacked it until now."""
    return bool(
        connection.execute(
            select(
                exists().where(offers.c.digest == digest)
                | exists().where(accepted.c.digest == digest)
            )
        ).scalar_one()
    )


def drop(connection: Connection, digests: Collection[str]) -> None:
    """Forget manifests that turned out to be damaged."""
    for some in _slices(sorted(digests)):
        connection.execute(delete(contracts).where(contracts.c.digest.in_(some)))


def _slices(keys: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(keys), _AT_ONCE):
        yield keys[start : start + _AT_ONCE]
