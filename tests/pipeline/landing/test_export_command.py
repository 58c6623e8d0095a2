"""`accord pipeline export`: what it says, to people and to programs, and what it refuses."""

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from accord.cli import app
from accord.community.bus import BUS_STORE
from accord.kernel.errors import AccordError
from accord.pipeline.landing import Landing
from accord.storage import JournalRecord, open_store
from accord.testing.processes import python_child

pytestmark = pytest.mark.slow

STREAM = "bus.calls"


def export(home: Path, *words: str) -> Result:
    return CliRunner().invoke(app, ["pipeline", "export", "--home", str(home), *words])


def write(home: Path, *numbers: int) -> None:
    async def append() -> None:
        async with open_store(home / "stores", BUS_STORE) as store:
            await store.append(*(JournalRecord(STREAM, f"{n}", n, "node", "{}") for n in numbers))

    asyncio.run(append())


def test_it_says_what_landed_and_where(tmp_path: Path) -> None:
    write(tmp_path, *range(5))
    said = export(tmp_path)
    assert said.exit_code == 0
    assert "bus.calls: 5 records" in said.stdout
    assert "1 new segments" in said.stdout
    assert "already" in export(tmp_path, "--once").stdout
    assert Landing(tmp_path / "pipeline" / "landing").landed()[STREAM] == 5


def test_a_program_reads_json(tmp_path: Path) -> None:
    write(tmp_path, 1, 2)
    told = json.loads(export(tmp_path, "--json", "--to", str(tmp_path / "there")).stdout)
    assert told == {"landing": str(tmp_path / "there"), "records": {STREAM: 2}, "segments": 1}
    told = json.loads(export(tmp_path, "--json").stdout)
    assert told["records"] == {STREAM: 2}, "another place has its own"
    told = json.loads(export(tmp_path, "--json", "--prune").stdout)
    assert told["pruned"] == {"records": 0, "segments": 0}, "by default nothing goes"
    (tmp_path / "accord.toml").write_text("[pipeline]\nretain_days = 1\n")
    told = json.loads(export(tmp_path, "--json", "--prune").stdout)
    assert told["pruned"] == {"records": 2, "segments": 0}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "no plane of this home has written anything"),
        (["--to", "pigeon://x"], "segments cannot be put there"),
        (["--to", "there", "--prune"], "journals are pruned only by what has landed"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_makes_nothing(
    words: list[str], sentence: str, tmp_path: Path
) -> None:
    failed = export(tmp_path, *words)
    assert isinstance(failed.exception, AccordError)
    assert sentence in str(failed.exception)
    assert list(tmp_path.iterdir()) == []


def test_once_and_every_do_not_go_together(tmp_path: Path) -> None:
    assert export(tmp_path, "--once", "--every", "5").exit_code == 2


def test_it_goes_on_until_it_is_stopped(tmp_path: Path) -> None:
    write(tmp_path, 1)
    words = ("pipeline", "export", "--every", "1", "--json", "--home", str(tmp_path))
    with python_child("-m", "accord.cli", *words) as child:
        assert json.loads(child.read_line())["records"] == {STREAM: 1}
        write(tmp_path, 2)
        while not json.loads(child.read_line())["records"]:
            pass
        child.terminate()
        assert child.wait() == 0
    assert Landing(tmp_path / "pipeline" / "landing").landed()[STREAM] == 2
