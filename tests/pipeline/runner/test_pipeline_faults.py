"""What is broken is noticed and said; the rest goes on, and the next run works."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from tests.pipeline.folders import SMALL, bring_up, contents

from accord.pipeline import session
from accord.pipeline.errors import PipelineError
from accord.pipeline.folder import Layout, lock_folder, lock_holder
from accord.pipeline.generate import GeneratedHistory, SegmentRecords, land, slices
from accord.pipeline.landing import (
    Landing,
    forget_released,
    pack,
    parse_name,
    recheck_admitted,
    release_retired,
)
from accord.pipeline.rules import streams
from accord.pipeline.runs import SparkTarget, admit, admitted, published, refresh, run_once
from accord.pipeline.session import watch_session
from accord.pipeline.tables import layers
from accord.storage import JournalEntry

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BRIEF = (streams.BUS_CALLS, streams.CONTRACTS_HISTORY, streams.CONTRACTS_CALLS)


def batches(count: int, seed: int = 3) -> list[list[SegmentRecords]]:
    return slices(GeneratedHistory(400, seed, streams=BRIEF).portions(), count, seed)


def land_next(layout: Layout, batch: list[SegmentRecords]) -> None:
    land(Landing(layout.landing), batch)


def last(folder: Path) -> Path:
    return max((each for each in folder.iterdir() if each.name.isdigit()), key=_number)


def _number(path: Path) -> int:
    return int(path.name)


def remove(path: Path) -> None:
    path.unlink()
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


@pytest.mark.long
def test_checkpoints_that_lost_their_last_commit_come_to_the_same_tables(
    spark: "SparkSession", tmp_path: Path
) -> None:
    layout, quiet = Layout(tmp_path / "a"), Layout(tmp_path / "b")
    for batch in batches(2):
        land_next(layout, batch)
        bring_up(layout, spark)
        for layer in ("bronze", "checked", "silver"):
            remove(last(layout.checkpoint(layer) / "commits"))
        land_next(quiet, batch)
    outcome = bring_up(layout, spark)
    assert all(account.balances for account in outcome.accounts)
    bring_up(quiet, spark)
    assert contents(layout, spark) == contents(quiet, spark)


@pytest.mark.parametrize(
    "layer",
    [
        "bronze",
        pytest.param("checked", marks=pytest.mark.long),
        pytest.param("silver", marks=pytest.mark.long),
    ],
)
def test_a_checkpoint_that_does_not_fit_its_table_is_noticed_said_and_mended(
    spark: "SparkSession", tmp_path: Path, layer: str
) -> None:
    layout = Layout(tmp_path)
    first, second = batches(2)
    land_next(layout, first)
    bring_up(layout, spark)
    for log in ("commits", "offsets"):
        remove(last(layout.checkpoint(layer) / log))
    land_next(layout, second)
    with pytest.raises(PipelineError, match="nothing was published") as caught:
        bring_up(layout, spark)
    assert f"refresh {layer}" in str(caught.value)
    standing = published(layout)
    assert standing is not None
    assert standing.name == "00000001"
    layers.reset_layers(layout, layer)
    outcome = bring_up(layout, spark)
    assert outcome.version == "00000002"
    assert all(account.balances for account in outcome.accounts)


def test_a_segment_that_is_cut_off_is_left_out_whole_and_admitted_once_it_is_mended(
    spark: "SparkSession", tmp_path: Path
) -> None:
    layout = Layout(tmp_path)
    (batch,) = batches(1)
    land_next(layout, batch)
    victim = min((layout.landing / streams.BUS_CALLS).iterdir())
    whole = victim.read_bytes()
    victim.write_bytes(whole[: len(whole) // 2])
    outcome = bring_up(layout, spark)
    assert [(each.stream, each.segment) for each in outcome.spoilt] == [
        (streams.BUS_CALLS, victim.name)
    ]
    lost = parse_name(streams.BUS_CALLS, victim.name)
    assert lost is not None
    before = {account.stream: account.landed for account in outcome.accounts}
    victim.write_bytes(whole)
    mended = bring_up(layout, spark)
    assert mended.spoilt == []
    after = {account.stream: account.landed for account in mended.accounts}
    assert after[streams.BUS_CALLS] == before.get(streams.BUS_CALLS, 0) + lost.rows


def rewritten(path: Path, **changes: object) -> Path:
    """Write a segment anew with other columns or another form, under a name that fits its bytes."""
    from blake3 import blake3

    table = pq.read_table(path)
    if "without" in changes:
        table = table.drop_columns([str(changes["without"])])
    if "form" in changes:
        told = {**table.schema.metadata, b"accord.format": str(changes["form"]).encode()}
        table = table.replace_schema_metadata(told)
    path.unlink()
    pq.write_table(table, path)
    stem = path.name.rpartition("-")[0]
    target = path.with_name(f"{stem}-{blake3(path.read_bytes()).hexdigest()[:16]}.parquet")
    return path.rename(target)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [({"without": "source"}, "lacks the column source"), ({"form": 99}, "has form 99")],
    ids=["without a column", "from the future"],
)
def test_a_segment_of_another_form_is_left_out_and_said(
    tmp_path: Path, changes: dict[str, object], sentence: str
) -> None:
    layout = Layout(tmp_path)
    (batch,) = batches(1)
    land_next(layout, batch)
    spoilt = rewritten(min((layout.landing / streams.BUS_CALLS).iterdir()), **changes)
    new, left_out = admit(layout)
    assert new
    assert [each.segment for each in left_out] == [spoilt.name]
    assert sentence in left_out[0].reason
    assert spoilt.exists()


@pytest.mark.long
def test_files_with_a_time_far_ahead_hide_nothing(spark: "SparkSession", tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    first, second = batches(2)
    land_next(layout, first)
    for file in layout.landing.rglob("*.parquet"):
        os.utime(file, (4e9, 4e9))
    bring_up(layout, spark)
    land_next(layout, second)
    outcome = bring_up(layout, spark)
    assert all(account.balances for account in outcome.accounts)
    assert outcome.rows["bronze"] > 0


def test_bodies_that_cannot_be_read_end_in_quarantine_and_stop_nothing(
    spark: "SparkSession", tmp_path: Path
) -> None:
    layout = Layout(tmp_path)
    bodies = ["", "no JSON", "\0", "[" * 10_000, '"' + "x" * 20_000_000 + '"', "{}"]
    entries = [
        JournalEntry(streams.RELAY_INBOUND, f"r{at}", 1, "test", body, at + 1)
        for at, body in enumerate(bodies)
    ]
    Landing(layout.landing).put(*pack("relay-1", entries))
    outcome = bring_up(layout, spark)
    (account,) = outcome.accounts
    assert (account.landed, account.quarantined) == (6, 6)


def test_an_empty_landing_is_said_and_starts_no_spark(tmp_path: Path) -> None:
    outcome = run_once(Layout(tmp_path), SparkTarget(master="no such master"))
    assert not outcome.published
    assert outcome.version is None


def test_without_java_one_sentence_says_so_and_nothing_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout(tmp_path)
    (batch,) = batches(1)
    land_next(layout, batch)
    monkeypatch.setattr(session, "find_java", lambda: None)
    monkeypatch.setattr(
        "pyspark.SparkContext._active_spark_context", None
    )  # the tests' own session stays out of this
    with pytest.raises(PipelineError, match="Java 17 or newer"):
        run_once(layout, definitions=SMALL)
    assert published(layout) is None
    assert lock_holder(layout) is None


def test_a_second_run_is_told_who_holds_the_folder(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    with lock_folder(layout, "run"):
        assert f"process {os.getpid()}" in (lock_holder(layout) or "")
        with pytest.raises(PipelineError, match=f"process {os.getpid()} .*holds this pipeline"):
            run_once(layout)
    assert lock_holder(layout) is None


def test_a_table_that_does_not_exist_cannot_be_refreshed(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="there is no table 'no-such'"):
        refresh(Layout(tmp_path), "no-such")


@contextmanager
def full_disk(spark: "SparkSession") -> Iterator[None]:
    """Let every write of the JVM beyond a few bytes fail."""
    process = session.jvm(spark)
    assert process is not None
    before = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (2000, before[1]))
    try:
        yield
    finally:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_said_and_the_next_run_comes_to_the_same_tables(
    spark: "SparkSession", tmp_path: Path
) -> None:
    layout, quiet = Layout(tmp_path / "full"), Layout(tmp_path / "quiet")
    first, second = batches(2)
    for batch in (first, second):
        land_next(quiet, batch)
    land_next(layout, first)
    bring_up(layout, spark)
    land_next(layout, second)
    with (
        full_disk(spark),
        pytest.raises(PipelineError, match="the disk is full"),
        watch_session(spark, layout.spark_log),
    ):
        bring_up(layout, spark)
    standing = published(layout)
    assert standing is not None
    assert standing.name == "00000001"
    assert admitted(layout)
    bring_up(layout, spark)
    bring_up(quiet, spark)
    assert contents(layout, spark) == contents(quiet, spark)


def test_segments_on_an_object_store_are_fetched_when_they_are_admitted(tmp_path: Path) -> None:
    layout, url = Layout(tmp_path), f"memory://{tmp_path.name}/landing"
    (batch,) = batches(1)
    landed = land(Landing(url), batch)
    new, spoilt = admit(layout, url)
    assert spoilt == []
    assert sum(segment.rows for segment in new) == landed
    assert sum(admitted(layout).values()) == landed
    assert admit(layout, url) == ([], [])


def test_what_a_landing_has_retired_frees_the_admitted_files_and_still_counts(
    tmp_path: Path,
) -> None:
    layout = Layout(tmp_path)
    (batch,) = batches(1)
    land_next(layout, batch)
    new, _ = admit(layout)
    before = admitted(layout)
    first, *_ = new
    Landing(layout.landing).retire(first)
    assert release_retired(layout) == 1
    assert not (layout.admitted / first.stream / first.name).exists()
    assert admitted(layout) == before
    assert admit(layout) == ([], [])
    # A refresh from bronze does not bring it back.
    forget_released(layout)
    assert sum(admitted(layout).values()) == sum(before.values()) - first.rows
    assert admit(layout) == ([], [])


def test_an_admitted_file_that_changed_is_not_trusted_again(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    (batch,) = batches(1)
    land_next(layout, batch)
    new, _ = admit(layout)
    first, second, *_ = new
    for segment in (first, second):
        # A file of its own, as on another file system, and links to one.
        file = layout.admitted / segment.stream / segment.name
        data = file.read_bytes()
        if segment is first:
            file.unlink()
        file.write_bytes(data[:40] + bytes([data[40] ^ 1]) + data[41:])
    changed = recheck_admitted(layout)
    assert {each.segment for each in changed} == {first.name, second.name}
    again, spoilt = admit(layout)
    assert again == [first]
    assert [each.segment for each in spoilt] == [second.name]


def test_a_run_with_nothing_new_starts_no_spark(spark: "SparkSession", tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    (batch,) = batches(1)
    land_next(layout, batch)
    before = bring_up(layout, spark)
    nowhere = SparkTarget(master="no such master")
    outcome = run_once(layout, nowhere, definitions=SMALL)
    assert (outcome.version, outcome.published) == (before.version, False)


def test_what_a_landing_lets_go_of_stays_admitted(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    (batch,) = batches(1)
    land_next(layout, batch)
    new, _ = admit(layout)
    for segment in new:
        Landing(layout.landing).retire(segment)
    before = admitted(layout)
    assert admit(layout) == ([], [])
    assert admitted(layout) == before
