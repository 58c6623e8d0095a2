"""The checks: exactly the planted faults are refused, each under its rule, and nothing raises."""

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accord import __version__
from accord.contracts import digest
from accord.contracts.authoring import Contract
from accord.kernel import canonical
from accord.pipeline.generate import FaultOutcome, GeneratedHistory
from accord.pipeline.rules import (
    RULES,
    Manifests,
    RecordVerdict,
    RefusedError,
    check,
    check_batch,
    check_call,
    read_manifests,
    rules_version,
    streams,
)
from accord.pipeline.whatif import CallOutcome as Becomes
from accord.pipeline.whatif import ProposedContract
from accord.storage import JournalEntry


def presented(records: list[JournalEntry]) -> Manifests:
    history = [each.body for each in records if each.stream == streams.CONTRACTS_HISTORY]
    found = read_manifests(pa.RecordBatch.from_pydict({"body": history}))
    return Manifests({each["digest"]: each["manifest"] for each in found.to_pylist()})


def verdicts(records: list[JournalEntry]) -> list[tuple[JournalEntry, RecordVerdict]]:
    known = presented(records)
    return [(each, check(each.stream, each.id, each.body, known)) for each in records]


@pytest.mark.parametrize("seed", range(3))
def test_exactly_the_planted_faults_are_refused_each_under_its_own_rule(seed: int) -> None:
    history = GeneratedHistory(400, seed)
    found = verdicts(history.records())
    expected = Counter(
        (stream, place.source, place.seq, rule)
        for (kind, stream), places in history.truth.planted.items()
        for place in places
        for rule in [_rule(kind)]
        if rule is not None
    )
    refused = Counter(
        (each.stream, each.source, each.seq, verdict.rule)
        for each, verdict in found
        if verdict.rule is not None
    )
    assert refused == expected
    assert all(verdict.reason for _, verdict in found if verdict.rule)


def _rule(kind: str) -> str | None:
    from accord.pipeline.generate import KINDS

    return KINDS[kind].rule if KINDS[kind].fate is FaultOutcome.QUARANTINED else None


@pytest.mark.parametrize("seed", range(3))
def test_duplicates_are_those_records_whose_digest_was_there_before(seed: int) -> None:
    history = GeneratedHistory(400, seed)
    standing = [
        (each.stream, verdict.digest)
        for each, verdict in verdicts(history.records())
        if verdict.rule is None
    ]
    for stream, terms in history.truth.streams.items():
        digests = [digest for of, digest in standing if of == stream]
        assert len(set(digests)) == terms.accepted
        assert len(digests) - len(set(digests)) == terms.duplicates


def test_a_forgery_under_a_real_id_does_not_share_the_digest_of_the_real_event() -> None:
    history = GeneratedHistory(400, 5)
    found = verdicts(history.records())
    shadows = {place.id for place in history.truth.planted["forged.shadow", "community.events"]}
    assert shadows
    digests = [v.digest for each, v in found if each.id in shadows and v.rule == "signature"]
    assert set(digests).isdisjoint(v.digest for _, v in found if v.rule is None)


def test_an_event_that_was_in_clear_text_stands_under_its_true_digest() -> None:
    from tests.fakes.histories import HistoryWriter

    from accord.pipeline.rules import redaction

    scribe = HistoryWriter(1, signed=True)
    founder, friend = scribe.pen("founder"), scribe.pen("friend")
    scribe.found(founder)
    scribe.admit(founder, friend)
    said = scribe.say(founder, friend)
    body = redaction.redact(streams.COMMUNITY_EVENTS, said.encode().decode())
    assert said.data["body"] not in body
    verdict = check(streams.COMMUNITY_EVENTS, "x", body)
    assert (verdict.rule, verdict.digest) == (None, said.digest.hex())
    assert verdict.event is not None
    assert verdict.event.author == founder.id


@pytest.mark.parametrize("stream", streams.STREAMS)
@pytest.mark.parametrize(
    ("body", "rule"),
    [
        (None, "body.missing"),
        ("", "json.syntax"),
        ("no JSON", "json.syntax"),
        (b"\xff\xfe", "json.syntax"),
        ('{"a":1,"a":2}', "json.syntax"),
        ("[" * 100_000, "json.syntax"),
        ('"' + "x" * 20_000_000 + '"', "body.size"),
    ],
    ids=["missing", "empty", "text", "not UTF-8", "twice", "deep", "20 MB"],
)
def test_a_body_that_cannot_be_read_is_refused(
    stream: str, body: bytes | str | None, rule: str
) -> None:
    assert check(stream, "id", body).rule == rule


@pytest.mark.parametrize("body", ["{}", "[]", "null", "1", '{"redacted":1}'])
@pytest.mark.parametrize("stream", streams.STREAMS)
def test_json_of_another_shape_is_refused(stream: str, body: str) -> None:
    assert check(stream, "id", body).rule in {"schema", "event.form", "event.redacted"}


def test_a_stream_that_the_pipeline_does_not_have_is_refused() -> None:
    assert check("relay.gossip", "id", "{}").rule == "stream.unknown"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=150)
@given(st.sampled_from(streams.STREAMS), st.text(), st.binary() | st.text(st.characters()))
def test_no_body_of_any_kind_raises(stream: str, record_id: str, body: bytes | str) -> None:
    verdict = check(stream, record_id, body)
    assert verdict.rule in RULES
    assert len(verdict.digest) == 64


@settings(max_examples=100)
@given(st.data())
def test_a_record_that_was_tampered_with_anywhere_raises_nothing(data: st.DataObject) -> None:
    each = data.draw(st.sampled_from(RECORDS))
    value = canonical.decode(each.body)
    name = data.draw(st.sampled_from(sorted(value)))
    value[name] = data.draw(json_values)
    try:
        body = canonical.encode(value)
    except canonical.CanonicalError:
        return
    verdict = check(each.stream, each.id, body, KNOWN)
    assert verdict.rule is None or verdict.rule in RULES


RECORDS = GeneratedHistory(400, 11, faults={}).records()[::7]
KNOWN = presented(
    GeneratedHistory(400, 11, faults={}, streams=(streams.CONTRACTS_HISTORY,)).records()
)


def test_a_batch_is_judged_like_its_records_one_by_one() -> None:
    records = GeneratedHistory(400, 2).records()
    known = presented(records)
    batch = pa.RecordBatch.from_pylist(
        [
            {
                "stream": each.stream,
                "seq": each.seq,
                "id": each.id,
                "recorded_at": each.recorded_at,
                "source": each.source,
                "body": each.body,
                "segment": "s",
            }
            for each in records
        ]
    )
    rows = check_batch(batch, known).to_pylist()
    for each, row in zip(records, rows, strict=True):
        verdict = check(each.stream, each.id, each.body, known)
        told = None if verdict.event is None else verdict.event._asdict()
        assert (row["rule"], row["reason"], row["digest"]) == (
            verdict.rule,
            verdict.reason,
            verdict.digest,
        )
        assert row["event"] == told


def test_an_empty_batch_stays_empty() -> None:
    names = ("stream", "seq", "id", "recorded_at", "source", "body", "segment")
    kinds = {"seq": pa.int64(), "recorded_at": pa.int64()}
    batch = pa.RecordBatch.from_pydict(
        {name: pa.array([], kinds.get(name, pa.string())) for name in names}
    )
    assert check_batch(batch, Manifests({})).num_rows == 0


def call(**changes: Any) -> str:
    each = next(r for r in RECORDS if r.stream == streams.CONTRACTS_CALLS and '"payload"' in r.body)
    return canonical.encode({**canonical.decode(each.body), **changes}).decode()


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({}, None),
        ({"digest": "A" * 43}, "contract.unknown"),
        ({"contract_id": "somebody.else@v1"}, "contract.unknown"),
        ({"surface": "No.Such"}, "contract.surface"),
        ({"payload": {"nobody": ["asked"]}}, "contract.payload"),
    ],
)
def test_a_call_is_held_against_its_contract(changes: dict[str, Any], rule: str | None) -> None:
    assert check(streams.CONTRACTS_CALLS, "id", call(**changes), KNOWN).rule == rule


def test_a_call_whose_payload_was_kept_out_is_not_judged_by_it() -> None:
    value = canonical.decode(call())
    del value["payload"]
    body = canonical.encode(value)
    assert check(streams.CONTRACTS_CALLS, "id", body, KNOWN).rule is None


@pytest.mark.parametrize("more", [{}, {"payload": None}, {"payload": {"n": 1}}])
def test_a_job_without_a_result_ends_as_valid_work(more: dict[str, Any]) -> None:
    contract = Contract("mill@v1", display_name="Mill", description="Grinds.")
    contract.schema("Any", True)
    contract.job("grind", "Any")
    manifest = contract.manifest()
    known = Manifests({digest(manifest): canonical.encode(manifest)})
    value = canonical.decode(call(contract_id="mill@v1", digest=digest(manifest), kind="jobs"))
    del value["payload"]
    ended = {**value, "surface": "grind", "part": "result", **more}
    check_call(ended, known)
    with pytest.raises(RefusedError):
        check_call({**ended, "surface": "sow"}, known)
    same = ProposedContract(
        canonical.encode(manifest), {digest(manifest): canonical.encode(manifest)}
    )
    assert same.judge(ended).fate is Becomes.UNTOUCHED
    bare = {name: value for name, value in manifest.items() if name != "jobs"}
    gone = ProposedContract(canonical.encode(bare), {digest(manifest): canonical.encode(manifest)})
    assert gone.judge(ended).fate is Becomes.GONE


def test_the_reason_for_a_broken_payload_does_not_show_what_was_in_it() -> None:
    body = call(payload={"password": "correct horse"})
    reason = check(streams.CONTRACTS_CALLS, "id", body, KNOWN).reason
    assert reason
    assert "correct horse" not in reason


def test_a_verdict_names_the_version_of_its_rules() -> None:
    names = {"stream": [streams.BUS_CALLS], "id": ["one"], "body": ["no JSON"]}
    verdict = check_batch(pa.RecordBatch.from_pydict(names), Manifests({}))
    assert verdict.column("rules_version").to_pylist() == [rules_version()]
    assert rules_version().startswith(f"{__version__}+")
