from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing, nullcontext
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.metrics_core import Metric
from sqlalchemy import Connection, insert
from tests.community.node.conftest import Street
from tests.community.node.conftest import street as street
from tests.fakes.directory import MemoryDirectory

from accord.authority.store import count_states
from accord.authority.tables import AUTHORITY, deployments, instances, materialized, offers, plans
from accord.capabilities.llm import (
    GenerationEnd,
    GenerationMetrics,
    GenerationQueue,
    Piece,
    PromptRead,
    StopReason,
    TextPiece,
)
from accord.community.peers import Peer
from accord.community.scheduler import MOST_PEERS, SyncCounters, node_metrics
from accord.kernel.identifiers import UlidSource
from accord.pipeline.folder import Layout
from accord.pipeline.runs import versions
from accord.relay.connector import RELAY, DeliveryContext, QueueBacklog, apply_retention, tables
from accord.station import load
from accord.station.pipeline import PipelinePlane
from accord.storage import open_store
from accord.testing import VirtualClock

NOW = 1_800_000_000.0


def sampled(metrics: Iterable[Metric]) -> dict[tuple[str, ...], float]:
    return {
        (each.name, *each.labels.values()): each.value
        for metric in metrics
        for each in metric.samples
    }


async def test_a_node_tells_whom_it_met_when_and_how_far_behind_it_was(street: Street) -> None:
    ann, bob = await street.house("ann"), await street.house("bob")
    community = await street.found(ann)
    await street.admit(ann, bob, community)
    await ann.node.sync(community)
    for number in range(3):
        await bob.post(community, number)
    await ann.node.sync(community)
    found = sampled(ann.node.collect())
    assert found["accord_community_members", community] == 2
    assert found["accord_sync_behind_events", community, bob.id] == 3
    assert found["accord_sync_met_timestamp_seconds", community, bob.id] == street.clock.now()
    assert found["accord_sync_peers", community, "reached"] == 1
    assert found["accord_sync_received_events_total", community] >= 3
    assert found["accord_sync_meetings_total", community, "met"] >= 2
    assert found["accord_fold_events_total", community] >= 6
    head = found["accord_community_head_lamport", community]
    await bob.node.sync(community)
    assert sampled(bob.node.collect())["accord_community_head_lamport", community] == head


async def test_of_very_many_members_only_some_are_shown_one_by_one(street: Street) -> None:
    ann = await street.house("ann")
    community = await street.found(ann)
    book = ann.node.book
    manifest = ann.node.presence.manifest(ann.in_(community))
    for number in range(MOST_PEERS + 10):
        guest = street.key(f"guest {number}").id
        book._peers[community, guest] = Peer(guest, community, (), manifest, True, number)
    found = sampled(node_metrics([ann.in_(community)], book, ann.node.links, SyncCounters()))
    shown = [name for name in found if name[0] == "accord_sync_met_timestamp_seconds"]
    assert len(shown) == MOST_PEERS
    assert found["accord_sync_peers", community, "reached"] == MOST_PEERS + 10


async def generated(*pieces: Piece | Exception) -> AsyncGenerator[Piece]:
    for piece in pieces:
        if isinstance(piece, Exception):
            raise piece
        yield piece


@pytest.mark.parametrize(
    ("pieces", "taken", "outcome", "tokens"),
    [
        (
            (PromptRead(7), TextPiece("a", None, 1), GenerationEnd(StopReason.END, 7, 2)),
            3,
            "end",
            (7, 2),
        ),
        (
            (PromptRead(7), TextPiece("a", None, 1), RuntimeError("the model is gone")),
            9,
            "failed",
            (7, 1),
        ),
        ((PromptRead(7), TextPiece("a", None, 1), TextPiece("b", None, 2)), 2, "cancelled", (7, 1)),
    ],
)
async def test_a_generation_is_counted_however_it_ends(
    pieces: tuple[Any, ...], taken: int, outcome: str, tokens: tuple[int, int]
) -> None:
    figures = GenerationMetrics(GenerationQueue(max_concurrent=1, max_waiting=1))
    gone = pytest.raises(RuntimeError) if outcome == "failed" else nullcontext()
    with gone:
        async with aclosing(figures.count("m", generated(*pieces), VirtualClock())) as passing:
            for _ in range(taken):
                await anext(passing)
    found = sampled(figures.collect())
    assert found["accord_llm_generations_total", "m", outcome] == 1
    assert found["accord_llm_tokens_total", "m", "in"] == tokens[0]
    assert found["accord_llm_tokens_total", "m", "out"] == tokens[1]
    assert found["accord_llm_running",] == found["accord_llm_waiting",] == 0


def queued(connection: Connection, instance: str, created: list[float]) -> None:
    common = {"tenant": "t", "series": "s", "epoch": 0, "flipped": 0}
    connection.execute(insert(tables.queues).values(instance=instance, head=len(created), **common))
    row = dict.fromkeys(
        ("tenant", "platform", "scope_id", "session_key", "event", "kind", "body"), "x"
    )
    for seq, moment in enumerate(created, 1):
        connection.execute(
            insert(tables.buffer).values(
                instance=instance,
                seq=seq,
                created_at=int(moment * 1000),
                state="pending",
                deliveries=0,
                epoch=0,
                **row,
            )
        )


async def test_the_process_that_tidies_tells_how_long_the_oldest_row_waits(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with open_store(tmp_path, RELAY) as store:
        context = DeliveryContext(store, MemoryDirectory(), clock, UlidSource(clock), "one")
        assert (await apply_retention(context, 30)).waiting == QueueBacklog()
        now = clock.now()
        await store.write(lambda c: queued(c, "early", [now - 90, now - 5]))
        await store.write(lambda c: queued(c, "late", [now - 20]))
        await store.write(lambda c: queued(c, "empty", []))
        assert (await apply_retention(context, 30)).waiting == QueueBacklog(3, 90.0)


def agreed(connection: Connection) -> None:
    for name, disabled in (("made", 0), ("failed", 0), ("off", 1), ("new", 0)):
        connection.execute(
            insert(deployments).values(
                id=name,
                kind="service",
                compatibility="strict",
                disabled=disabled,
                desired="{}",
                version=1,
            )
        )
    for name, status in (("made", "current"), ("failed", "failed"), ("off", "current")):
        row = {"version": 1, "bindings": "{}", "settings": "{}"}
        connection.execute(insert(materialized).values(deployment=name, status=status, **row))
    for number, state in enumerate(("pending", "pending", "accepted")):
        row = dict.fromkeys(("classification", "requester", "contract_id", "digest", "delta"), "x")
        connection.execute(
            insert(plans).values(
                id=str(number), deployment="made", state=state, based_on=1, created_at=NOW, **row
            )
        )
    for name, live, expires in (("a", 1, 50.0), ("b", 0, 20.0), ("c", 1, 20.0), ("d", 1, -1.0)):
        connection.execute(
            insert(instances).values(key=name, deployment="made", name=name, disabled=0)
        )
        connection.execute(
            insert(offers).values(
                instance=name,
                contract_id="x",
                deployment="made",
                digest="x",
                live=live,
                accepted_at=NOW,
                expires_at=NOW + expires,
            )
        )


async def test_plans_offers_and_deployments_are_counted_by_where_they_stand(tmp_path: Path) -> None:
    async with open_store(tmp_path, AUTHORITY) as store:
        await store.write(agreed)
        found = await store.read(lambda c: count_states(c, NOW))
    assert dict(found.plans) == {
        ("pending",): 2,
        ("accepted",): 1,
        ("rejected",): 0,
        ("expired",): 0,
    }
    assert dict(found.offers) == {("live",): 1, ("stale",): 2, ("expired",): 1}
    assert dict(found.deployments) == {
        ("current",): 1,
        ("failed",): 1,
        ("pending",): 0,
        ("disabled",): 1,
        ("new",): 1,
    }


async def test_gold_tells_its_age_and_what_became_of_records(tmp_path: Path) -> None:
    pipeline = PipelinePlane(load(tmp_path), VirtualClock())
    await pipeline._look()
    assert ("accord_pipeline_gold_timestamp_seconds",) not in sampled(pipeline.collect())
    layout = Layout(tmp_path / "pipeline")
    account = {"stream": "bus.calls", "accepted": 8, "quarantined": 1, "duplicates": 2}
    facts = {"published_at": NOW * 1000, "accounts": [account]}
    versions.publish(layout, versions.create_draft(layout), facts)
    await pipeline._look()
    found = sampled(pipeline.collect())
    assert found["accord_pipeline_gold_timestamp_seconds",] == NOW
    assert found["accord_pipeline_records", "bus.calls", "quarantined"] == 1
    assert found["accord_pipeline_spoilt_segments",] == 0
    layout.current.write_text("nonsense")
    await pipeline._look()
    assert sampled(pipeline.collect()) == found
