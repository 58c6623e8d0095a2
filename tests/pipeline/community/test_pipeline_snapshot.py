"""A snapshot from the published tables is one that nodes exchange, and take."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.fakes.histories import START, HistoryWriter
from tests.pipeline.community.conftest import STAGES, Build
from typer.testing import CliRunner

from accord.cli import app as accord
from accord.cli.node import LocalNode, with_node
from accord.cli.output import Cli
from accord.community import retention
from accord.community.errors import Code, CommunityError
from accord.community.log import EventLog, open_log
from accord.community.rules import (
    choose_snapshot,
    digest_of_state,
    fold_events,
    parse_event,
    read_snapshot,
    settled_state,
    state_bytes,
)
from accord.community.snapshots import SNAPSHOT
from accord.community.store import COMMUNITY_STORE
from accord.kernel.errors import AccordError
from accord.kernel.identifiers import UlidSource
from accord.kernel.signing import SigningKey
from accord.pipeline.errors import PipelineError
from accord.pipeline.folder import Layout
from accord.pipeline.runs import create_draft, publish
from accord.pipeline.snapshots import published_state, published_states, snapshot_of
from accord.storage import open_store
from accord.testing import VirtualClock

pytestmark = pytest.mark.slow


@asynccontextmanager
async def a_log(path: Path, key: SigningKey, community_id: str) -> AsyncIterator[EventLog]:
    clock = VirtualClock(START)
    path.mkdir()  # noqa: ASYNC240
    async with (
        open_store(path, COMMUNITY_STORE) as store,
        open_log(
            store, community_id, key=key, clock=clock, folder=path, ids=UlidSource(clock, int)
        ) as log,
    ):
        yield log


def a_story() -> HistoryWriter:
    """A signed log: a founder who is anchor, a revoked member, and something quarantined."""
    scribe = HistoryWriter("snapshot", signed=True)
    founder, friend, foe = (scribe.pen(name) for name in ("founder", "friend", "foe"))
    scribe.found(founder, {"min_signatures_to_revoke": 1})
    for newcomer in (friend, foe):
        scribe.admit(founder, newcomer)
    for pen in (founder, friend, foe, founder):
        scribe.post(pen)
        scribe.say(pen, founder)
    scribe.revoke(founder, foe, last_seq=2)
    scribe.post(friend, lamport=scribe.lamport + 2_000_000)
    return scribe


def key_of(scribe: HistoryWriter, name: str) -> SigningKey:
    key = scribe.pen(name).key
    assert key is not None
    return key


async def test_what_spark_came_to_is_signed_offered_and_adopted(
    build: Build, tmp_path: Path
) -> None:
    scribe = a_story()
    log_id, anchor = scribe.community_id, key_of(scribe, "founder")
    raws = [event.encode() for event in scribe.events]
    gold = build(scribe.events, only=STAGES)
    state = published_state(sorted((gold.folder / "state").glob("*.parquet")), log_id)
    snapshot = snapshot_of(state, anchor, START)
    async with a_log(tmp_path / "anchor", anchor, log_id) as log:
        await log.receive(raws)
        assert await log.view(state_bytes) == state
        await retention.offer_snapshot(log, snapshot)
        offered = await retention.offered_snapshot(log, None)
        assert offered is not None
        assert offered.encode() == snapshot.encode()
        # The node itself, asked for a snapshot at the same place, writes the same state.
        assert await retention.take_snapshot(log, snapshot.lamport)
        assert (await retention.signed_snapshots(log))[0].state == snapshot.state
    read = read_snapshot(offered.encode(), log_id)
    anchors = frozenset({anchor.id})
    async with a_log(tmp_path / "joiner", key_of(scribe, "friend"), log_id) as log:
        await retention.adopt_snapshot(log, choose_snapshot([read], anchors), anchors)
        assert await log.view(state_bytes) == snapshot.state
        await log.receive(raws)
        await log.refold()
        assert await log.view(state_bytes) == state


async def test_a_node_offers_no_snapshot_that_its_log_does_not_come_to(tmp_path: Path) -> None:
    scribe = a_story()
    log_id, anchor = scribe.community_id, key_of(scribe, "founder")
    whole = state_bytes(fold_events(scribe.events, log_id).state)
    without = [event for event in scribe.events if event.event_type != "chat.message.sent"]
    other = state_bytes(fold_events(without, log_id).state)
    async with a_log(tmp_path / "anchor", anchor, log_id) as log:
        await log.receive([event.encode() for event in scribe.events])
        with pytest.raises(CommunityError) as refused:
            await retention.offer_snapshot(log, snapshot_of(other, anchor, START))
        assert refused.value.code is Code.PARTITION
        renamed = json.loads(whole)
        renamed["name"] = "Another street"
        forged = json.dumps(renamed, sort_keys=True, separators=(",", ":")).encode()
        with pytest.raises(CommunityError) as refused:
            await retention.offer_snapshot(log, snapshot_of(forged, anchor, START))
        assert refused.value.code is Code.PARTITION
        assert await retention.signed_snapshots(log) == []


def test_only_an_anchors_key_signs_and_only_what_has_a_head() -> None:
    scribe = a_story()
    state = state_bytes(fold_events(scribe.events, scribe.community_id).state)
    with pytest.raises(PipelineError, match="not an anchor's"):
        snapshot_of(state, key_of(scribe, "friend"), START)
    empty = state_bytes(fold_events([], scribe.community_id).state)
    with pytest.raises(PipelineError, match="no valid event"):
        snapshot_of(empty, key_of(scribe, "founder"), START)


def test_what_is_quarantined_is_not_in_a_snapshot() -> None:
    scribe = a_story()
    state = fold_events(scribe.events, scribe.community_id).state
    near = [event for event in scribe.events if event.lamport <= state.lamport]
    assert len(near) < len(scribe.events)
    assert settled_state(state_bytes(state)) == state_bytes(
        fold_events(near, scribe.community_id).state
    )


class Station:
    """A home with a node that founded a community, and the tables of a run over its log."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._runner = CliRunner()
        self.community_id = self.say("community", "create", "Elm Street")["community_id"]

    def say(self, *arguments: str) -> Any:
        found = self._runner.invoke(accord, [*arguments, "--home", str(self.home), "--json"])
        assert found.exception is None, found.exception
        return json.loads(found.stdout)

    def post(self) -> None:
        data = {"client_id": "p", "category": "offer", "title": "Saw", "body": "Sharp."}

        async def ask(here: LocalNode) -> None:
            async with here.community(None) as client:
                wanted = {"event_type": "market.post.created", "data": data}
                await client.post("/node/v1/act", wanted)

        with_node(Cli(home=self.home), ask)

    def served(self, lamport: int) -> Any:
        """What another node would be given."""

        async def ask(here: LocalNode) -> Any:
            async with here.community(None) as client:
                return await client.post(SNAPSHOT, {"lamport": lamport})

        return with_node(Cli(home=self.home), ask)

    def state(self) -> bytes:
        path = self.home / "export.jsonl"
        self.say("community", "export", str(path))
        events = [parse_event(line) for line in path.read_bytes().splitlines()[1:]]
        path.unlink()
        return state_bytes(fold_events(events, self.community_id).state)

    def publish(self, *states: bytes) -> None:
        layout = Layout(self.home / "pipeline")
        version = create_draft(layout)
        read = [json.loads(state) for state in states]
        table = pa.table(
            {
                "community_id": [each["community_id"] for each in read],
                "name": [each["name"] for each in read],
                "lamport": [each["head"]["lamport"] for each in read],
                "digest": [digest_of_state(state) for state in states],
                "size_bytes": [len(state) for state in states],
                "state": list(states),
            }
        )
        (layout.version(version) / "state").mkdir()
        pq.write_table(table, layout.version(version) / "state" / "one.parquet")
        publish(layout, version, {})

    def snapshot(self, *arguments: str) -> Any:
        words = ["pipeline", "snapshot", *arguments, "--home", str(self.home), "--json"]
        found = self._runner.invoke(accord, words)
        if isinstance(found.exception, AccordError):
            raise found.exception
        assert found.exception is None, found.exception
        return json.loads(found.stdout)


@pytest.fixture
def station(tmp_path: Path) -> Station:
    return Station(tmp_path / "home")


def test_the_command_shows_writes_and_publishes(station: Station, tmp_path: Path) -> None:
    state = station.state()
    station.publish(state, a_foreign_state())
    with pytest.raises(CommunityError, match="several communities"):
        station.snapshot()
    shown = station.snapshot("--community", station.community_id)
    assert (shown["signed_by"], shown["state_digest"]) == (None, digest_of_state(state))
    out = tmp_path / "snapshot.json"
    told = station.snapshot("--community", station.community_id, "--out", str(out), "--publish")
    assert told["published"]
    written = read_snapshot(out.read_bytes(), station.community_id)
    assert (written.state, written.author) == (state, told["signed_by"])
    assert station.served(told["lamport"]) == json.loads(out.read_bytes())
    assert not list(station.home.glob(".snapshot-*"))
    with pytest.raises(PipelineError, match="cannot be written"):
        station.snapshot("--community", station.community_id, "--out", str(out))


def test_the_command_says_what_is_missing(station: Station) -> None:
    with pytest.raises(PipelineError, match="nothing is published"):
        station.snapshot()
    station.publish()
    with pytest.raises(PipelineError, match="hold no community"):
        station.snapshot()
    station.publish(a_foreign_state())
    with pytest.raises(PipelineError, match="not an anchor's"):
        station.snapshot("--publish")


def test_a_log_that_has_gone_on_since_still_offers_the_snapshot(station: Station) -> None:
    station.publish(station.state())
    before = station.snapshot()["lamport"]
    station.post()
    told = station.snapshot("--publish")
    assert told["published"]
    assert told["lamport"] == before < station.say("community", "show")["head_lamport"]


def a_foreign_state() -> bytes:
    scribe = a_story()
    return state_bytes(fold_events(scribe.events, scribe.community_id).state)


def test_a_table_that_cannot_be_read_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="cannot be read"):
        published_states([tmp_path / "none.parquet"])
