"""What a log takes from others: proven, once, and on disk before it says so."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection, select

from accord.community.errors import Code
from accord.community.intake import ProverPool, prove_event
from accord.community.log import open_log
from accord.community.rules import Event, compose_event
from accord.community.store import COMMUNITY_STORE, EVENT_STREAM, events
from accord.kernel import canonical
from accord.kernel.signing import SigningKey
from accord.storage import check, journal, open_store


async def codes(log: Any, *raws: bytes) -> list[Code]:
    return [each.code for each in (await log.receive(raws)).rejected]


async def stored(log: Any) -> list[Any]:
    query = select(events).where(events.c.community == log.number).order_by(events.c.arrival)
    return await log.store.read(lambda c: c.execute(query).all())  # type: ignore[no-any-return]


async def test_the_revisions_build_the_tables_that_are_declared(where: str) -> None:
    def differences(connection: Connection) -> list[Any]:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return list(compare_metadata(context, COMMUNITY_STORE.metadata))

    async with open_store(where, COMMUNITY_STORE) as store:
        assert await store.read(differences) == []


async def test_events_are_stored_once_and_journaled_as_they_are(town: Any, where: str) -> None:
    async with town.log(where=where) as log:
        await town.found(log)
        posts = town.chain(town.founder, None, 5)
        raws = [event.encode() for event in posts]
        first = await log.receive(raws)
        again = await log.receive([*raws, *raws])
        assert (first.accepted, first.duplicates, first.rejected) == (5, 0, ())
        assert (again.accepted, again.duplicates, again.rejected) == (0, 10, ())
        rows = await stored(log)
        assert [row.body.encode() for row in rows[1:]] == raws
        assert [row.digest for row in rows[1:]] == [event.digest for event in posts]
        entries = await log.store.read(lambda c: journal.read(c, EVENT_STREAM))
        assert [entry.body for entry in entries] == [row.body for row in rows]
    if "://" not in where:
        assert check(where, COMMUNITY_STORE).findings == ()


async def test_an_event_is_kept_in_canonical_form_however_it_was_written(town: Any) -> None:
    event = town.chain(town.founder, None, 1)[0]
    spaced = json.dumps(event.payload(), indent=3).encode()
    async with town.log() as log:
        assert (await log.receive([spaced])).accepted == 1
        assert (await log.receive([event.encode()])).duplicates == 1
        assert [row.body for row in await stored(log)] == [event.encode().decode()]


@given(body=st.text(st.characters(codec="utf-8"), min_size=1, max_size=60))
def test_the_kept_text_is_the_canonical_one(body: str) -> None:
    key = SigningKey(b"k" * 32)
    event = compose_event(
        key,
        "market.post.created",
        {"client_id": "c", "category": "offer", "title": '"wall_clock":"x"', "body": body},
        event_id="01KDVDNA0000068RWXAF852BGN",
        lamport=1,
        wall_clock="2026-05-26T08:14:22Z",
        community_id=key.id,
        author_seq=1,
        prev=None,
    )
    assert prove_event(event.encode(), key.id).body == event.encode().decode()


async def test_each_bad_event_is_refused_by_itself_with_its_code(town: Any) -> None:
    stranger = SigningKey(b"s" * 32)
    good, other = town.chain(town.founder, None, 2)
    foreign = town.chain(town.founder, None, 1, community_id=stranger.id)[0]
    forged = good.encode().replace(b"Ladder", b"Lender")
    stolen = {**good.payload(), "author": stranger.id}
    raws = [
        b"",
        b"\xff",
        b"[]",
        b"{" * 100_000,
        forged,
        good.encode(),
        json.dumps(stolen).encode(),
        foreign.encode(),
        b'{"lamport":1e400}',
        other.encode(),
        good.encode() + b" " * 300_000,
    ]
    async with town.log() as log:
        receipt = await log.receive(raws)
        assert (receipt.accepted, receipt.duplicates) == (2, 0)
        assert [(each.index, each.code) for each in receipt.rejected] == [
            (0, Code.BAD_REQUEST),
            (1, Code.BAD_REQUEST),
            (2, Code.BAD_REQUEST),
            (3, Code.BAD_REQUEST),
            (4, Code.INVALID_SIGNATURE),
            (6, Code.INVALID_SIGNATURE),
            (7, Code.BAD_REQUEST),
            (8, Code.BAD_REQUEST),
            (10, Code.BAD_REQUEST),
        ]
        assert all(each.reason for each in receipt.rejected)
        assert len(await stored(log)) == 2


async def test_a_forgery_with_a_known_id_cannot_shadow_the_real_event(town: Any) -> None:
    real = town.chain(town.founder, None, 1)[0]
    forged = real.encode().replace(b"Ladder", b"Lender")
    async with town.log() as log:
        assert await codes(log, forged, forged) == [Code.INVALID_SIGNATURE] * 2
        assert (await log.receive([forged, real.encode()])).accepted == 1
        assert await codes(log, forged) == [Code.INVALID_SIGNATURE]
        assert [row.body.encode() for row in await stored(log)] == [real.encode()]


async def test_one_message_signed_twice_by_other_signatures_is_one_event(town: Any) -> None:
    event = town.chain(town.founder, None, 1)[0]
    twin = Event(
        **{name: getattr(event, name) for name in Event.__slots__ if name != "signature"},
        signature=_signed_otherwise(town.founder, event),
    )
    assert twin.encode() != event.encode()
    async with town.log() as log:
        assert (await log.receive([event.encode(), twin.encode()])).duplicates == 1
        assert (await log.receive([twin.encode()])).duplicates == 1
        assert [row.body.encode() for row in await stored(log)] == [event.encode()]


def _signed_otherwise(key: SigningKey, event: Event) -> str:
    """A valid signature with another nonce, which only the key's owner can make."""
    import hashlib

    from nacl.bindings import (
        crypto_core_ed25519_scalar_add,
        crypto_core_ed25519_scalar_mul,
        crypto_core_ed25519_scalar_reduce,
        crypto_scalarmult_ed25519_base_noclamp,
    )

    from accord.kernel.signing import signed_bytes

    message = signed_bytes(event.payload())
    scalar = bytearray(hashlib.sha512(key.seed).digest()[:32])
    scalar[0] &= 248
    scalar[31] = scalar[31] & 127 | 64
    nonce = crypto_core_ed25519_scalar_reduce(hashlib.sha512(b"another").digest())
    point = crypto_scalarmult_ed25519_base_noclamp(nonce)
    challenge = crypto_core_ed25519_scalar_reduce(
        hashlib.sha512(point + key.public + message).digest()
    )
    secret = crypto_core_ed25519_scalar_reduce(bytes(scalar) + bytes(32))
    product = crypto_core_ed25519_scalar_mul(challenge, secret)
    return "ed25519:" + canonical.encode_base64url(
        point + crypto_core_ed25519_scalar_add(nonce, product)
    )


async def test_many_callers_at_once_each_get_their_own_receipt(town: Any, where: str) -> None:
    posts = town.chain(town.founder, None, 200)
    raws = [event.encode() for event in posts]
    async with town.log(where=where) as log:
        await town.found(log)
        receipts = await asyncio.gather(
            *(log.receive([raws[n], b"bad", raws[(n + 1) % 200]]) for n in range(200))
        )
        assert sum(each.accepted for each in receipts) == 200
        assert sum(each.duplicates for each in receipts) == 200
        assert all([bad.index for bad in each.rejected] == [1] for each in receipts)
        rows = await stored(log)
        assert len(rows) == 201
        assert [row.arrival for row in rows] == list(range(1, 202))


async def test_a_call_longer_than_a_batch_counts_its_refusals_from_its_start(town: Any) -> None:
    raws = [event.encode() for event in town.chain(town.founder, None, 600)]
    async with town.log() as log:
        receipt = await log.receive([*raws, b"bad"])
        assert receipt.accepted == 600
        assert [each.index for each in receipt.rejected] == [600]


async def test_two_communities_of_a_node_share_a_store_and_nothing_else(
    town: Any, where: str, tmp_path: Path
) -> None:
    other = SigningKey(b"o" * 32)
    async with open_store(where, COMMUNITY_STORE) as store:
        options = {"key": town.founder, "clock": town.clock}
        (tmp_path / "a").mkdir()
        (tmp_path / "b").mkdir()
        async with (
            open_log(store, town.id, folder=tmp_path / "a", **options) as ours,
            open_log(store, other.id, folder=tmp_path / "b", **options) as theirs,
        ):
            posts = [event.encode() for event in town.chain(town.founder, None, 3)]
            assert (await ours.receive(posts)).accepted == 3
            assert await codes(theirs, *posts) == [Code.BAD_REQUEST] * 3
            same = town.chain(town.founder, None, 2, community_id=other.id)
            assert (await theirs.receive([event.encode() for event in same])).accepted == 2
            assert sum(ours.state.content.counts.values()) == 3
            assert sum(theirs.state.content.counts.values()) == 2


async def test_provers_prove_what_a_thread_proves(town: Any) -> None:
    raws = [event.encode() for event in town.chain(town.founder, None, 40)]
    raws[7] = raws[7].replace(b"Ladder", b"Lender")
    raws[9] = b"nonsense"
    provers = ProverPool(2)
    try:
        async with town.log(provers=provers) as log:
            receipt = await log.receive(raws)
    finally:
        provers.close()
    assert receipt.accepted == 38
    assert [(each.index, each.code) for each in receipt.rejected] == [
        (7, Code.INVALID_SIGNATURE),
        (9, Code.BAD_REQUEST),
    ]


async def test_a_prover_that_is_killed_loses_nothing(town: Any) -> None:
    import psutil

    raws = [event.encode() for event in town.chain(town.founder, None, 40)]
    provers = ProverPool(1)
    try:
        async with town.log(provers=provers) as log:
            assert (await log.receive(raws[:20])).accepted == 20
            children = psutil.Process().children()
            mine = [c for c in children if "accord.community.intake" in c.cmdline()]
            assert len(mine) == 1
            mine[0].kill()
            assert (await log.receive(raws[20:])).accepted == 20
    finally:
        provers.close()


async def test_a_closed_log_refuses(town: Any) -> None:
    async with town.log() as log:
        pass
    with pytest.raises(Exception, match="the log is closed"):
        await log.receive([b"{}"])
