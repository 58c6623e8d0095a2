"""The tables of gold community say what the fold says."""

from datetime import UTC, datetime
from typing import Any

import pytest
from tests.pipeline.community.conftest import World

from accord.community.rules import MEMBERSHIP_TYPES, CommunityState, read_state, state_object
from accord.kernel import canonical
from accord.kernel.clock import parse_time
from accord.pipeline.rules import COMMUNITY_EVENTS
from accord.pipeline.tables import COMMUNITY_TABLES

pytestmark = pytest.mark.slow

MEMBER = ("node_id", "level", "added_at", "added_by", "display_name")


def of(state: CommunityState, section: str) -> Any:
    return state_object(state)[section]


def by_log(world: World, table: str) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in world.gold.rows(table):
        found.setdefault(row.pop("community_id"), []).append(row)
    return found


def test_tables_name_what_they_read_and_come_after_it() -> None:
    known = {COMMUNITY_EVENTS}
    for table in COMMUNITY_TABLES:
        assert set(table.needs) <= known
        known.add(table.name)


def test_every_event_has_its_verdict_with_a_reason(world: World) -> None:
    found = {row["digest"]: row for row in world.gold.rows("event_verdicts")}
    assert len(found) == sum(map(len, world.logs.values()))
    for event, verdict in world.each():
        row = found[event.digest.hex()]
        told = row["status"], row["rule"], row["reason"]
        assert told == (verdict.status.value, verdict.rule, verdict.reason)
        assert (row["lamport"], row["event_id"]) == (event.lamport, event.event_id)
        assert (row["author"], row["author_seq"]) == (event.author, event.author_seq)
        assert (row["community_id"], row["at"]) == (event.community_id, event.wall_clock)


def test_the_timeline_has_every_membership_event_and_what_it_set(world: World) -> None:
    found = {row["digest"]: row for row in world.gold.rows("membership_timeline")}
    assert found.keys() == {
        event.digest.hex() for event, _ in world.each() if event.event_type in MEMBERSHIP_TYPES
    }
    for event, verdict in world.each():
        if event.event_type in MEMBERSHIP_TYPES:
            row = found[event.digest.hex()]
            assert (row["status"], row["rule"]) == (verdict.status.value, verdict.rule)
            outcome = world.folds[event.community_id].state.roster.outcomes.get(event.digest)
            node = None if outcome is None else outcome.node
            assert row["node_id"] == node
            assert (row["level"] is None) == (node is None)
            if row["policy"] is not None:
                assert outcome is not None
                assert canonical.decode(row["policy"]) == outcome.policy


def test_members_files_corpora_and_messages_are_those_of_the_state(world: World) -> None:
    members = by_log(world, "members")
    tables = {"files": "files", "corpora": "corpora", "chat": "chat_messages"}
    rows = {section: by_log(world, table) for section, table in tables.items()}
    for log, folded in world.folds.items():
        assert sorted(members.get(log, []), key=str) == sorted(
            ({name: each[name] for name in MEMBER} for each in folded.state.members()), key=str
        )
        for section in tables:
            expected = sorted(of(folded.state, section), key=str)
            assert sorted(rows[section].get(log, []), key=str) == expected


def test_threads_count_the_messages_between_two_members(world: World) -> None:
    threads = world.gold.rows("chat_threads")
    for log, folded in world.folds.items():
        messages = of(folded.state, "chat")
        ours = [row for row in threads if row["community_id"] == log]
        assert sum(row["messages"] for row in ours) == len(messages)
        assert sum(row["read"] for row in ours) == sum(
            each["read_at"] is not None for each in messages
        )
        pairs = {frozenset((each["author"], each["recipient"])) for each in messages}
        assert len(ours) == len(pairs)


def test_the_market_stands_as_long_as_a_node_shows_it(world: World) -> None:
    posts = by_log(world, "market")
    assert any(row["ended"] is not None for rows in posts.values() for row in rows)
    for log, folded in world.folds.items():
        ours = {(row["event_id"], row["author"]): row for row in posts.get(log, [])}
        written = of(folded.state, "market")
        assert len(ours) == len(written)
        for each in written:
            row = ours[each["event_id"], each["author"]]
            for name in ("client_id", "lamport", "created_at", "ended"):
                assert row[name] == each[name]
            for name, value in each["fields"].items():
                assert row[name] == value
        last = max((parse_time(each["created_at"]) for each in written), default=0.0)
        for as_of in (last, last + 7 * 86_400 - 60):
            shown = folded.state.market(as_of)
            now = datetime.fromtimestamp(as_of, UTC).replace(tzinfo=None)
            standing = {
                name
                for name, row in ours.items()
                if row["ended"] is None and now < row["expires_at"].replace(tzinfo=None)
            }
            assert standing == {(each["event_id"], each["author"]) for each in shown}


def test_the_markets_history_has_every_change_that_stood(world: World) -> None:
    changes = {row["digest"]: row for row in world.gold.rows("market_history")}
    for event, verdict in world.each():
        if event.event_type.startswith("market.post.") and verdict.rule == "accepted":
            row = changes.pop(event.digest.hex())
            assert row["post"] == event.data.get("target_event_id", event.event_id)
            fields = event.data.get("fields", event.data)
            assert (row["title"], row["reason"]) == (
                fields.get("title"), event.data.get("reason")
            )  # fmt: skip
    assert not changes


def test_chains_and_equivocations_carry_their_proof(world: World) -> None:
    chains = world.gold.rows("author_chains")
    proofs = world.gold.rows("equivocations")
    assert proofs
    for log, folded in world.folds.items():
        expected = folded.state.chains
        ours = {row["author"]: row for row in chains if row["community_id"] == log}
        assert ours.keys() == expected.keys()
        for author, chain in expected.items():
            row = ours[author]
            assert (row["head_seq"], row["head_hash"]) == (chain.head_seq, chain.head_hash)
            assert (row["head_lamport"], row["seen_seq"]) == (chain.head_lamport, chain.seen_seq)
            assert (row["cut_seq"], row["cut_rule"]) == (
                (None, None) if chain.cut is None else (chain.cut[0], chain.cut[1].rule)
            )
        forks = {author: chain.fork for author, chain in expected.items() if chain.fork}
        proven = {row["author"]: row for row in proofs if row["community_id"] == log}
        assert proven.keys() == forks.keys()
        for author, (seq, *digests) in forks.items():
            row = proven[author]
            for each, digest in zip((row["first"], row["second"]), digests, strict=True):
                assert each["digest"] == digest.hex()
                body = canonical.decode(each["body"])
                assert body.get("event", body)["author_seq"] == seq == row["author_seq"]


def test_the_published_bytes_are_read_back_as_a_state(world: World) -> None:
    for log, written in world.gold.states().items():
        assert read_state(written).community_id == log
