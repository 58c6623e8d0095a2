"""Publication: readers see whole versions, keep what they read, and never a draft."""

import json
from pathlib import Path

import pytest
from tests.pipeline.folders import SMALL

from accord import __version__
from accord.pipeline.errors import PipelineError
from accord.pipeline.folder import Layout, initialise, table_format
from accord.pipeline.runs import status
from accord.pipeline.runs import versions as publishing
from accord.pipeline.tables import GoldTable, downstream, layers

pytestmark = pytest.mark.slow


def publish_next(layout: Layout, text: str = "rows") -> str:
    name = publishing.create_draft(layout)
    table = layout.version(name) / "traffic"
    table.mkdir()
    (table / "part.parquet").write_text(text)
    publishing.publish(layout, name, {"text": text})
    publishing.remove_old(layout)
    return name


def versions(layout: Layout) -> list[str]:
    return sorted(each.name for each in layout.gold.iterdir() if each.is_dir())


def test_before_the_first_publication_readers_are_told_what_to_do(tmp_path: Path) -> None:
    assert publishing.published(Layout(tmp_path)) is None
    with (
        pytest.raises(PipelineError, match="nothing is published yet"),
        publishing.open_published(Layout(tmp_path)),
    ):
        pass


def test_a_draft_is_seen_by_nobody_and_swept_away_by_the_next_one(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    publish_next(layout, "old")
    left = publishing.create_draft(layout)
    (layout.version(left) / "half").mkdir()
    with publishing.open_published(layout) as version:
        assert version.facts["text"] == "old"
    assert publishing.create_draft(layout) == left
    assert list(layout.version(left).iterdir()) == []


def test_the_last_versions_are_kept_and_older_ones_go(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    names = [publish_next(layout) for _ in range(6)]
    assert versions(layout) == names[-publishing.KEPT_VERSIONS :]


def test_a_version_that_somebody_reads_is_kept_until_it_is_put_down(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    publish_next(layout, "mine")
    with publishing.open_published(layout) as version:
        for _ in range(5):
            publish_next(layout)
        assert (version.path / "traffic" / "part.parquet").read_text() == "mine"
        assert version.name in versions(layout)
    publish_next(layout)
    assert version.name not in versions(layout)


@pytest.mark.parametrize("written", ["", "../..", "00000009", "\xff"])
def test_a_damaged_name_is_said(tmp_path: Path, written: str) -> None:
    layout = Layout(tmp_path)
    publish_next(layout)
    layout.current.write_text(written, "latin-1")
    with pytest.raises(PipelineError, match="the published version cannot be read"):
        publishing.published(layout)


def test_a_table_that_did_not_change_is_the_same_file_as_long_as_a_version_names_it(
    tmp_path: Path,
) -> None:
    layout = Layout(tmp_path)
    publish_next(layout, "once")
    first = publishing.published(layout)
    assert first is not None
    files = {"traffic": first.files("traffic")}
    for _ in range(2 * publishing.KEPT_VERSIONS):
        name = publishing.create_draft(layout)
        publishing.publish(layout, name, {}, files)
        publishing.remove_old(layout)
    last = publishing.published(layout)
    assert last is not None
    assert last.files("traffic") == first.files("traffic")
    assert last.files("traffic")[0].read_text() == "once"
    assert last.files("traffic")[0].stat().st_nlink == 1
    for _ in range(publishing.KEPT_VERSIONS):
        publish_next(layout)
    assert not first.files("traffic")[0].exists()


def test_a_file_that_was_damaged_is_not_carried_on(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    publish_next(layout, "rows")
    version = publishing.published(layout)
    assert version is not None
    tables = (SMALL[0], GoldTable("other", SMALL[0].build, ("s",)))
    assert publishing.whole_tables(tables[:1], version, ()) == frozenset()
    (file,) = version.files("traffic")
    file.write_text("worse")
    assert publishing.whole_tables((SMALL[0], SMALL[1]), version, ()) == {"traffic", "busiest"}
    file.unlink()
    assert publishing.whole_tables(tables, version, ()) == {"traffic", "other"}


def test_a_version_of_an_earlier_release_is_read_by_its_folder(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    name = publish_next(layout)
    (layout.version(name) / "version.json").write_text("{}")
    version = publishing.published(layout)
    assert version is not None
    assert version.tables == ["traffic"]
    assert [each.name for each in version.files("traffic")] == ["part.parquet"]


def test_only_what_depends_on_a_change_is_built_again() -> None:
    tables = (
        GoldTable("a", SMALL[0].build, ("s",)),
        GoldTable("b", SMALL[0].build, ("t",)),
        GoldTable("c", SMALL[0].build, ("a",)),
        GoldTable("d", SMALL[0].build, ("b", "c")),
    )
    assert downstream(tables, {"s"}) == {"a", "c", "d"}
    assert downstream(tables, {"t"}) == {"b", "d"}
    assert downstream(tables, {"c"}) == {"c", "d"}
    assert downstream(tables, ()) == set()


def facts(accepted: int, layers: str = "x") -> dict[str, object]:
    account = {"stream": "bus.calls", "accepted": accepted, "quarantined": 1}
    return {"accord": __version__, "layers": layers, "accounts": [account]}


def test_gold_is_stale_when_a_stream_grew_a_layer_is_new_or_accord_is_another(
    tmp_path: Path,
) -> None:
    for table in SMALL:
        (tmp_path / table.name).mkdir()
    everything = {"traffic", "busiest"}
    before = publishing.GoldVersion("00000001", tmp_path, facts(5))
    assert publishing.stale_tables(SMALL, before, facts(5)) == set()
    assert publishing.stale_tables(SMALL, before, facts(6)) == everything
    assert publishing.stale_tables(SMALL, before, facts(5, "y")) == everything
    assert publishing.stale_tables(SMALL, before, {**facts(5), "accord": "other"}) == everything
    assert publishing.stale_tables(SMALL, before, facts(5), ["busiest"]) == {"busiest"}
    assert publishing.stale_tables(SMALL, None, facts(5)) == everything


def test_a_layer_is_forgotten_with_its_checkpoint_and_all_that_follow(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    for layer in ("bronze", "checked", "silver"):
        layout.table(layer).mkdir(parents=True)
        layout.checkpoint(layer).mkdir(parents=True)
    assert layers.reset_layers(layout, "checked") == ("checked", "silver")
    assert layout.table("bronze").exists()
    assert layout.checkpoint("bronze").exists()
    for layer in ("checked", "silver"):
        assert not layout.table(layer).exists()
        assert not layout.checkpoint(layer).exists()


def test_forgetting_that_was_cut_short_is_finished_by_the_next_run(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.checkpoint("silver").mkdir(parents=True)
    layout.runs.mkdir()
    (layout.runs / "forgetting.json").write_text(json.dumps(["silver"]))
    layers.finish_reset(layout)
    assert not layout.checkpoint("silver").exists()
    layers.finish_reset(layout)


def test_the_table_format_is_chosen_once(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "new")
    assert table_format(layout) == "parquet"
    assert initialise(layout, "delta")
    assert table_format(layout) == "delta"
    assert not initialise(layout, "delta")
    with pytest.raises(PipelineError, match="in the format delta"):
        initialise(layout, "parquet")
    with pytest.raises(PipelineError, match="no table format 'csv'"):
        initialise(layout, "csv")


def test_a_damaged_setting_is_said(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.settings.write_text("[]")
    with pytest.raises(PipelineError, match="names no known table format"):
        table_format(layout)


def test_the_status_of_a_folder_that_is_not_there_is_empty(tmp_path: Path) -> None:
    told = status(Layout(tmp_path / "nowhere"))
    assert (told["version"], told["waiting"], told["running"]) == (None, {}, None)
