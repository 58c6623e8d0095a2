"""The quarantine: refused records are looked at, repaired by operations, and admitted again."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pipeline.folders import bring_up
from typer.testing import CliRunner

from accord.cli.pipeline_quarantine import app
from accord.kernel import canonical
from accord.kernel.errors import AccordError
from accord.pipeline.errors import PipelineError
from accord.pipeline.folder import Layout, initialise
from accord.pipeline.generate import GeneratedHistory
from accord.pipeline.landing import Landing, pack, read_records
from accord.pipeline.rules import (
    COMMUNITY_EVENTS,
    CONTRACTS_HISTORY,
    RELAY_UNLINKED,
    RecordVerdict,
    check,
    repairs,
)
from accord.pipeline.rules.repairs import Operation, RefusedRecord, RepairedRecord, repair
from accord.pipeline.runs import create_draft, publish
from accord.pipeline.runs.quarantine import (
    admit_repaired,
    find_records,
    refused_records,
    trail,
)
from accord.storage import JournalEntry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BODY = {
    "bot_id": "b",
    "hour": 470_000,
    "instance": None,
    "messages": "3",
    "platform": "telegram",
    "rule": "link.unknown",
    "tenant": None,
}
CAST = (Operation("cast", "/messages", "integer"),)


def refused(**changes: Any) -> RefusedRecord:
    return RefusedRecord(RELAY_UNLINKED, "r1", canonical.encode({**BODY, **changes}).decode())


def repaired(*operations: Operation, **changes: Any) -> RepairedRecord:
    return repair(refused(**changes), operations)


def test_a_repair_sets_casts_and_drops_members_and_the_checks_judge_the_result() -> None:
    assert repaired().verdict.rule == "schema"
    assert repaired(*CAST).stands
    assert json.loads(repaired(*CAST).body)["messages"] == 3
    assert repaired(Operation("set", "/messages", 4)).stands
    assert repaired(Operation("drop", "/extra"), messages=1, extra=2).stands
    assert repaired(Operation("set", "/messages", 0)).verdict.rule == "schema"


@pytest.mark.parametrize(
    ("value", "kind", "becomes"),
    [
        ("7", "integer", 7),
        (7.0, "integer", 7),
        ("1.5", "number", 1.5),
        (True, "string", "true"),
        (12, "string", "12"),
        ("false", "boolean", False),
    ],
)
def test_a_cast_gives_the_value_that_is_meant(value: Any, kind: str, becomes: Any) -> None:
    found = repaired(Operation("cast", "/messages", kind), messages=value).body
    assert json.loads(found)["messages"] == becomes


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("seven", "integer"),
        (1.5, "integer"),
        (True, "integer"),
        ("yes", "boolean"),
        (1, "boolean"),
        (None, "string"),
        ([1], "number"),
        ("9" * 400, "integer"),
        ("1", "date"),
    ],
)
def test_a_cast_that_would_be_a_guess_is_refused(value: Any, kind: str) -> None:
    with pytest.raises(PipelineError, match=r"cast|no type"):
        repaired(Operation("cast", "/messages", kind), messages=value)


@pytest.mark.parametrize("place", ["", "messages", "/no/such", "/hour/0", "/" + "a" * 600])
@pytest.mark.parametrize("kind", ["drop", "cast"])
def test_a_place_that_is_not_there_is_refused(place: str, kind: Any) -> None:
    with pytest.raises(PipelineError, match=r"place of a member|no such member"):
        repaired(Operation(kind, place, "integer"))


def test_what_cannot_be_read_or_never_landed_is_not_repaired() -> None:
    for body, why in (("{", "not JSON"), ('{"withheld":{}}', "withheld"), (None, "no body")):
        with pytest.raises(PipelineError, match=why):
            repair(RefusedRecord(RELAY_UNLINKED, "r1", body), CAST)


def test_a_digest_or_signature_is_never_part_of_a_repair() -> None:
    for name in ("digest", "text_digest", "signature"):
        for each in (Operation("set", f"/{name}", "x"), Operation("set", "/new", {name: "x"})):
            with pytest.raises(PipelineError, match="digests and signatures"):
                repaired(each)


@pytest.mark.slow
def test_a_signed_event_is_admitted_only_as_it_is_and_if_its_signature_holds() -> None:
    records = GeneratedHistory(400, 7).records()
    events = [each for each in records if each.stream == COMMUNITY_EVENTS]
    verdicts = {check(each.stream, each.id, each.body).rule: each for each in events}
    forged = verdicts["signature"]
    assert repair(as_refused(forged), ()).verdict.rule == "signature"
    kinds = set()
    for each in events:
        if check(each.stream, each.id, each.body).rule is None:
            is_redacted = "redacted" in json.loads(each.body)
            found = repair(as_refused(each), ())
            assert found.body == each.body
            assert found.verdict.rule == ("repair.signed" if is_redacted else None)
            kinds.add(is_redacted)
    assert False in kinds


def test_an_event_without_its_text_does_not_pass_for_one_with_a_signature(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What the checks let stand in this form is what an exporter wrote, unsigned.
    monkeypatch.setattr(repairs, "check", lambda *_: RecordVerdict("00"))
    body = '{"event":{},"redacted":{}}'
    found = repair(RefusedRecord(COMMUNITY_EVENTS, "e1", body), ())
    assert (found.stands, found.verdict.rule) == (False, "repair.signed")


def as_refused(entry: JournalEntry) -> RefusedRecord:
    return RefusedRecord(entry.stream, entry.id, entry.body)


STEPS = st.sampled_from(["/event", "/redacted", "/data", "/author", "/signature", "/manifest"])
OPERATIONS = st.builds(
    Operation, st.just("set"), STEPS, st.none() | st.integers(-9, 9) | st.text(max_size=5)
) | st.builds(Operation, st.just("drop"), STEPS)


@settings(deadline=None)
@given(
    st.lists(OPERATIONS, min_size=1, max_size=4),
    st.sampled_from([COMMUNITY_EVENTS, CONTRACTS_HISTORY]),
)
def test_no_operation_changes_an_event_or_a_manifest(
    operations: list[Operation], stream: str
) -> None:
    body = '{"data":{},"author":"a","signature":"s","manifest":{}}'
    with pytest.raises(PipelineError, match="proven by signature or digest"):
        repair(RefusedRecord(stream, "e1", body), operations)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A folder whose layers hold two refused records, as a run leaves them."""
    made = Layout(tmp_path)
    initialise(made)
    publish(made, create_draft(made), {"accounts": [], "published_at": 1})
    rows = []
    for number, body in enumerate((BODY, {**BODY, "messages": 0})):
        text = canonical.encode(body).decode()
        verdict = check(RELAY_UNLINKED, f"r{number}", text)
        rows.append(
            {
                "digest": verdict.digest,
                "id": f"r{number}",
                "seq": number + 1,
                "source": "node",
                "recorded_at": 1_700_000_000_000 + number,
                "rule": verdict.rule,
                "reason": verdict.reason,
                "segment": "s",
                "body": text,
            }
        )
    folder = made.table("checked") / f"stream={RELAY_UNLINKED}"
    folder.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), folder / "part.parquet")
    log = made.table("checked") / "_spark_metadata"
    log.mkdir()
    path = f"file:///tables/checked/{folder.name}/part.parquet"
    (log / "0").write_text("v1\n" + json.dumps({"path": path, "action": "add"}))
    return made


def accord(layout: Layout, *words: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, [*words, "--folder", str(layout.root), "--json"])
    if isinstance(result.exception, AccordError):
        raise result.exception
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def test_a_record_is_listed_shown_repaired_and_admitted_once_with_its_trail(
    layout: Layout,
) -> None:
    newest, first = accord(layout, "list", "--rule", "schema")["records"]
    assert (newest["id"], first["id"]) == ("r1", "r0")
    name = first["digest"][:12]
    original = accord(layout, "show", name)["body"]

    assert not accord(layout, "repair", name, code=1)["records"][0]["stands"]
    cast = ("--cast", "/messages=integer")
    assert accord(layout, "repair", name, *cast)["records"][0]["stands"]
    assert not list(layout.landing.rglob("*.parquet"))

    told = accord(layout, "admit", name, *cast, "--by", "ada", "--name", "counts")
    landing = Landing(layout.landing)
    (segment,) = landing.segments(RELAY_UNLINKED)
    assert segment.name == told["segment"]
    landing.verify(segment)
    (landed,) = read_records(landing.read(segment))
    assert json.loads(landed.body) == {**BODY, "messages": 3}
    assert (landed.id, landed.source, landed.recorded_at) == ("r0", "node", 1_700_000_000_000)

    (entry,) = accord(layout, "show", name)["trail"]
    assert entry == trail(layout)[0]
    assert (entry["by"], entry["repair"], entry["broke"]) == ("ada", "counts", "schema")
    assert entry["operations"] == [{"op": "cast", "path": "/messages", "value": "integer"}]
    assert entry["original"] == RefusedRecord(RELAY_UNLINKED, "r0", original).original
    assert [each["admitted_again"] for each in accord(layout, "list")["records"]] == [False, True]
    with pytest.raises(PipelineError, match="admitted in this form before"):
        accord(layout, "admit", name, *cast)
    assert len(trail(layout)) == 1


def test_nothing_lands_where_one_of_the_records_does_not_stand(layout: Layout) -> None:
    names = [each.digest for each in refused_records(layout)]
    found, manifests = find_records(layout, names)
    with pytest.raises(PipelineError, match="breaks a rule after the repair"):
        admit_repaired(layout, found, CAST, manifests, by="ada", name="x", now_ms=1)
    assert not list(layout.landing.rglob("*.parquet"))
    assert trail(layout) == []


@pytest.mark.parametrize("digest", ["", "abc", "zzzzzzzzzz", "0" * 65, "0" * 64, "%" * 9])
def test_a_digest_that_names_no_record_is_refused(layout: Layout, digest: str) -> None:
    with pytest.raises(PipelineError, match="digest"):
        find_records(layout, [digest])


@pytest.mark.slow
def test_an_admitted_record_is_accepted_by_the_next_run_and_the_account_balances(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    layout = Layout(tmp_path)
    text = canonical.encode(BODY).decode()
    entry = JournalEntry(
        stream=RELAY_UNLINKED, id="r0", recorded_at=1, source="node", body=text, seq=1
    )
    Landing(layout.landing).put(*pack("relay", [entry]))
    (account,) = bring_up(layout, spark).accounts
    assert (account.landed, account.accepted, account.quarantined) == (1, 0, 1)
    (one,) = refused_records(layout)
    found, manifests = find_records(layout, [one.digest])
    admit_repaired(layout, found, CAST, manifests, by="ada", name="counts", now_ms=1)
    (account,) = bring_up(layout, spark).accounts
    assert (account.landed, account.accepted, account.quarantined) == (2, 1, 1)
