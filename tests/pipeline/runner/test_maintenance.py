"""Maintenance: what is not needed goes, what is damaged is said, and nothing else changes."""

import os
from pathlib import Path

import pytest
from tests.pipeline.runner.test_publishing import publish_next, versions
from typer.testing import CliRunner

from accord.cli.pipeline import app
from accord.pipeline.errors import PipelineError
from accord.pipeline.folder import Layout, lock_folder
from accord.pipeline.runs import create_draft, open_published, published
from accord.pipeline.runs.maintenance import maintain

pytestmark = pytest.mark.slow


def test_old_versions_and_drafts_go_and_what_is_read_stays(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    publish_next(layout, "first")
    with open_published(layout) as read:
        publish_next(layout, "second")
        publish_next(layout, "third")
        (layout.version(create_draft(layout)) / "half").mkdir()
        done = maintain(layout, keep=1)
        assert list(done.versions) == ["00000002"]
        assert done.drafts == 1
        assert done.freed_bytes > 0
        assert [file.read_text() for file in read.files("traffic")] == ["first"]
    assert list(maintain(layout, keep=1).versions) == ["00000001"]
    assert versions(layout) == ["00000003"]
    last = published(layout)
    assert last is not None
    assert [file.read_text() for file in last.files("traffic")] == ["third"]


def test_a_changed_byte_of_a_published_file_is_said_also_when_its_time_and_size_are_the_same(
    tmp_path: Path,
) -> None:
    layout = Layout(tmp_path)
    publish_next(layout, "rows")
    assert list(maintain(layout).damaged) == []
    version = published(layout)
    assert version is not None
    (file,) = version.files("traffic")
    times = file.stat()
    file.write_text("rowz")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert list(maintain(layout).damaged) == ["traffic"]
    told = CliRunner().invoke(app, ["maintain", "--folder", str(tmp_path)])
    assert told.exit_code == 1
    assert "accord pipeline refresh traffic" in told.stdout


def test_an_empty_folder_needs_nothing_and_one_in_use_is_left_alone(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "new")
    assert maintain(layout).payload()["versions"] == ()
    with (
        lock_folder(layout, "run"),
        pytest.raises(PipelineError, match="holds this pipeline"),
    ):
        maintain(layout)
    with pytest.raises(PipelineError, match="at least one version"):
        maintain(layout, keep=0)
