"""Generated histories are the same every time, land whole, and can be taken in slices."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from accord.cli import app
from accord.kernel import canonical
from accord.pipeline.errors import PipelineError
from accord.pipeline.generate import (
    FAULTS,
    TRUTH_FILE,
    GeneratedHistory,
    SegmentRecords,
    generate,
    land,
    slices,
)
from accord.pipeline.landing import Landing, read_records
from accord.pipeline.rules import COMMUNITY_EVENTS, CONTRACTS_HISTORY, STREAMS
from accord.storage import JournalEntry

EVENTS = 500


def _everything(landing: Landing) -> list[JournalEntry]:
    return [
        record
        for stream in STREAMS
        for segment in landing.segments(stream)
        for record in read_records(landing.read(segment))
    ]


def _files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _place(record: JournalEntry) -> tuple[str, str, int]:
    return record.stream, record.source, record.seq


def test_the_same_seed_gives_the_same_bytes_and_another_one_others(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        generate(tmp_path / name, events=EVENTS, seed=seed, rows=200)
    assert _files(tmp_path / "a") == _files(tmp_path / "b")
    assert not set(_files(tmp_path / "a")) & set(_files(tmp_path / "c")) - {TRUTH_FILE}


def test_what_lands_is_what_is_made_in_memory_with_the_truth_beside_it(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    generate(tmp_path, events=EVENTS, seed=3, rows=100, progress=lambda *args: seen.append(args))
    made = GeneratedHistory(EVENTS, 3, rows=100)
    landing = Landing(tmp_path / "landing")
    assert sorted(_everything(landing), key=_place) == sorted(made.records(), key=_place)
    assert json.loads((tmp_path / TRUTH_FILE).read_bytes()) == made.truth.to_dict()
    assert landing.landed() == {stream: made.truth.streams[stream].landed for stream in STREAMS}
    done = [each[0] for each in seen]
    assert done == sorted(done)
    assert all(0 < done <= total for done, total in seen)


def test_what_is_in_a_stream_does_not_depend_on_the_others() -> None:
    whole = GeneratedHistory(EVENTS, 4)
    records = whole.records()
    for stream in STREAMS:
        alone = GeneratedHistory(EVENTS, 4, streams=[stream])
        assert alone.records() == [each for each in records if each.stream == stream]
        assert dict(alone.truth.streams) == {stream: whole.truth.streams[stream]}


def test_two_nodes_land_under_names_and_numbers_of_their_own() -> None:
    made = GeneratedHistory(EVENTS, 5, streams=[COMMUNITY_EVENTS])
    seqs: dict[str, list[int]] = {}
    for portion in made.portions():
        seqs.setdefault(portion.store.name, []).extend(each.seq for each in portion.entries)
    assert len(seqs) == 2
    assert all(found == list(range(1, len(found) + 1)) for found in seqs.values())


def test_a_folder_with_a_history_takes_no_second_one(tmp_path: Path) -> None:
    generate(tmp_path, events=EVENTS, seed=1, streams=[CONTRACTS_HISTORY])
    before = _files(tmp_path)
    with pytest.raises(PipelineError, match="has landed there already"):
        generate(tmp_path, events=EVENTS, seed=2)
    assert _files(tmp_path) == before


def test_a_place_that_cannot_be_written_is_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "landing").write_text("in the way")
    with pytest.raises(PipelineError, match="the segments cannot be listed"):
        generate(tmp_path, events=EVENTS, seed=1)
    assert not (tmp_path / TRUTH_FILE).exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"events": 10}, "too short"),
        ({"events": -1}, "too short"),
        ({"streams": ["weather"]}, "no stream 'weather'"),
        ({"rows": 0}, "at least one record"),
        ({"faults": {"treason": 1}}, "no fault 'treason'"),
        ({"faults": {"late": -1}}, "-1 faults"),
    ],
)
def test_a_history_that_cannot_be_is_refused(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PipelineError, match=sentence):
        GeneratedHistory(**{"events": EVENTS, "seed": 1, **arguments})


@pytest.mark.parametrize("count", [1, 2, 5])
def test_slices_hold_everything_once_numbered_as_they_come(tmp_path: Path, count: int) -> None:
    portions = list(GeneratedHistory(EVENTS, 6).portions())
    batches = slices(portions, count, 6)
    assert batches == slices(portions, count, 6)
    assert len(batches) == count
    landing = Landing(tmp_path)
    landed = sum(land(landing, batch) for batch in batches)
    assert landed == sum(len(portion.entries) for portion in portions)
    assert _named(batches) == _named([portions])
    for stream in STREAMS:
        heads: Counter[str] = Counter()
        for segment in landing.segments(stream):
            assert segment.first == heads[segment.store] + 1
            heads[segment.store] = segment.last


def _named(batches: list[list[SegmentRecords]]) -> Counter[tuple[str, str, str, str]]:
    return Counter(
        (entry.stream, entry.source, entry.id, entry.body)
        for batch in batches
        for portion in batch
        for entry in portion.entries
    )


def test_in_slices_the_hard_things_come_later_and_contracts_first() -> None:
    portions = list(GeneratedHistory(2000, 7).portions())
    batches = slices(portions, 4, 7)
    turns = {
        (entry.stream, entry.source, entry.id): turn
        for turn, batch in enumerate(batches)
        for portion in batch
        for entry in portion.entries
    }
    assert {turn for (stream, *_), turn in turns.items() if stream == CONTRACTS_HISTORY} == {0}
    total = sum(len(p.entries) for p in portions if p.stream == COMMUNITY_EVENTS)
    events = [e for p in portions if p.stream == COMMUNITY_EVENTS for e in p.entries]
    revoking = [
        (place * 4 // total, turns[entry.stream, entry.source, entry.id])
        for place, entry in enumerate(events)
        if '"event_type":"community.member.revoked"' in entry.body
    ]
    assert revoking
    assert all(now > then or now == 3 for then, now in revoking)


def test_the_guide_names_every_fault_with_its_rule() -> None:
    guide = Path(__file__).parents[3] / "docs" / "guides" / "pipeline-data.md"
    rows = [line for line in guide.read_text().splitlines() if line.startswith("| `")]
    told = {row.split("|")[1].strip(" `"): row.split("|")[5].strip(" `") for row in rows}
    assert told == {fault.kind: fault.rule or "" for fault in FAULTS}


def test_less_than_one_slice_is_refused() -> None:
    with pytest.raises(PipelineError, match="one slice at least"):
        slices([], 0, 1)


@pytest.fixture
def command() -> Any:
    return lambda *words: CliRunner().invoke(app, ["pipeline", "generate", *map(str, words)])


def test_the_command_tells_a_program_what_was_planted(tmp_path: Path, command: Any) -> None:
    result = command("--events", EVENTS, "--seed", 8, "--to", tmp_path / "trial", "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    truth = canonical.decode((tmp_path / "trial" / TRUTH_FILE).read_bytes())
    assert told["streams"] == truth["streams"]
    assert [each["count"] for each in told["faults"]] == [each["count"] for each in truth["faults"]]
    assert told["truth"] == str(tmp_path / "trial" / TRUTH_FILE)


def test_the_command_tells_a_person_too_and_can_leave_faults_out(
    tmp_path: Path, command: Any
) -> None:
    result = command("--events", EVENTS, "--to", tmp_path, "--no-faults")
    assert result.exit_code == 0, result.output
    assert "community.events" in result.stdout
    assert "0 records are planted" in result.stdout
    again = command("--events", EVENTS, "--to", tmp_path)
    assert isinstance(again.exception, PipelineError)
    assert "accord pipeline generate" in command("--help").stdout
