"""A pipeline's folder is moved, and goes on where it was."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.pipeline.folders import bring_up
from tests.pipeline.runner.test_pipeline_faults import batches, land_next

from accord.pipeline.folder import Layout, has_moved, relocate
from accord.pipeline.runs import admitted, layer_ids

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_folder_that_was_moved_goes_on_and_reads_nothing_twice(
    spark: "SparkSession", tmp_path: Path
) -> None:
    first, second = batches(2)
    here = Layout(tmp_path / "here")
    land_next(here, first)
    before = bring_up(here, spark)
    ids = layer_ids(here)

    there = Layout(tmp_path / "elsewhere & höher" / "tables" / "there")
    there.root.parent.mkdir(parents=True)
    here.root.rename(there.root)
    assert has_moved(there)
    known = sum(admitted(there).values())
    land_next(there, second)
    after = bring_up(there, spark)

    assert not has_moved(there)
    assert not here.root.exists()
    assert (before.version, after.version) == ("00000001", "00000002")
    assert after.rows["bronze"] == sum(admitted(there).values()) - known > 0
    assert layer_ids(there) == ids
    assert all(account.balances for account in after.accounts)
    assert sum(account.bronze for account in after.accounts) == sum(admitted(there).values())


def log(folder: Path, name: str, *paths: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f".{name}.crc").write_bytes(b"of the old words")
    file = folder / name
    lines = [f'{{"path":"{each}","size":1,"action":"add"}}' for each in paths]
    file.write_text("\n".join(["v1", *lines]))
    return file


@pytest.fixture
def moved(tmp_path: Path) -> Layout:
    layout = Layout(tmp_path / "new place")
    log(layout.table("bronze") / "_spark_metadata", "9.compact", "file:///old/tables/bronze/s=1/a")
    log(layout.checkpoint("bronze") / "sources" / "0", "3", "file:/old/tables/x/admitted/s/b")
    return layout


def test_every_name_begins_with_the_new_place_and_no_checksum_of_the_old_is_left(
    moved: Layout,
) -> None:
    relocate(moved)
    place = str(moved.root).replace(" ", "%20")
    sink = moved.table("bronze") / "_spark_metadata"
    source = moved.checkpoint("bronze") / "sources" / "0"
    assert f'"path":"file://{place}/tables/bronze/s=1/a"' in (sink / "9.compact").read_text()
    assert f'"path":"file:{place}/admitted/s/b"' in (source / "3").read_text()
    assert {each.name for each in (*sink.iterdir(), *source.iterdir())} == {"9.compact", "3"}


def test_a_move_that_was_cut_short_is_finished(moved: Layout) -> None:
    relocate(moved)
    done = (moved.table("bronze") / "_spark_metadata" / "9.compact").read_text()
    (moved.runs / "place").unlink()
    log(moved.checkpoint("bronze") / "sources" / "0", "3", "file:/old/tables/x/admitted/s/b")
    assert has_moved(moved)
    relocate(moved)
    assert not has_moved(moved)
    assert "/old/" not in (moved.checkpoint("bronze") / "sources" / "0" / "3").read_text()
    assert (moved.table("bronze") / "_spark_metadata" / "9.compact").read_text() == done


def test_a_folder_that_stays_is_left_as_it_is(moved: Layout) -> None:
    relocate(moved)
    file = moved.checkpoint("bronze") / "sources" / "0" / "4"
    log(file.parent, file.name, "file:///from/the/spark/that/runs/admitted/s/c")
    relocate(moved)
    assert "/from/the/spark/that/runs/" in file.read_text()
    assert file.with_name(".4.crc").exists()
