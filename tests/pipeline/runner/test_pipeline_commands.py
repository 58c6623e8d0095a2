"""`accord pipeline`: the verbs, from the landing to an answer."""

import json
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.pipeline.folders import SMALL, bring_up
from typer.testing import CliRunner

from accord.cli.pipeline import app
from accord.kernel.errors import AccordError
from accord.pipeline import session
from accord.pipeline.errors import PipelineError
from accord.pipeline.folder import Layout
from accord.pipeline.generate import GeneratedHistory, generate, land, slices
from accord.pipeline.landing import Landing
from accord.pipeline.rules import streams
from accord.pipeline.runs import RunOutcome, require_query, runner
from accord.pipeline.tables import GOLD

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def accord(*words: str) -> str:
    result = CliRunner().invoke(app, words)
    if isinstance(result.exception, AccordError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def accord_json(*words: str) -> Any:
    return json.loads(accord(*words, "--json"))


@pytest.fixture
def one_session(spark: "SparkSession", monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands use the tests' own session instead of starting a JVM each."""
    for module in (runner, session):
        monkeypatch.setattr(module, "open_session", lambda *_, **__: nullcontext(spark))


@pytest.mark.usefixtures("one_session")
def test_a_history_is_run_looked_at_asked_and_refreshed(tmp_path: Path) -> None:
    folder = ("--folder", str(tmp_path))
    truth = generate(tmp_path, events=400, seed=9)
    assert accord_json("init", *folder)["made"]
    waiting = accord_json("status", *folder)["waiting"]
    assert waiting == {stream: terms.landed for stream, terms in truth.streams.items()}

    outcome = accord_json("run", *folder)
    assert outcome["version"] == "00000001"
    assert sorted(outcome["built"]) == sorted(table.name for table in GOLD)

    told = accord_json("status", *folder)
    assert told["waiting"] == {}
    assert set(told["tables"]) == {"accounting", *(table.name for table in GOLD)}
    assert {each["stream"]: each["duplicates"] for each in told["accounts"]} == {
        stream: terms.duplicates for stream, terms in truth.streams.items()
    }
    assert "community.events" in accord("status", *folder)

    question = "SELECT stream, count(*) AS n FROM quarantine GROUP BY stream ORDER BY n, stream"
    answer = accord_json("sql", question, *folder)
    assert {row["stream"]: row["n"] for row in answer["rows"]} == {
        stream: terms.quarantined for stream, terms in truth.streams.items()
    }
    assert [row["n"] for row in answer["rows"]] == sorted(row["n"] for row in answer["rows"])
    assert accord_json("sql", question, "--spark", *folder) == answer
    assert accord_json("sql", question, "--limit", "2", *folder)["more"]

    for engine in ((), ("--spark",)):
        for layer, term in (("silver", "accepted"), ("quarantined", "quarantined")):
            counted = f"SELECT stream, count(*) AS n FROM {layer} GROUP BY stream"
            rows = accord_json("sql", counted, *engine, *folder)["rows"]
            assert {row["stream"]: row["n"] for row in rows} == {
                stream: getattr(terms, term)
                for stream, terms in truth.streams.items()
                if getattr(terms, term)
            }

    idle = accord_json("run", *folder)
    assert (idle["version"], idle["published"]) == ("00000001", False)

    again = accord_json("refresh", "relay_deliveries", *folder)
    assert again["version"] == "00000002"
    assert "relay_deliveries" in again["built"]
    assert "relay_latency" in again["built"]
    assert "members" not in again["built"]
    assert accord_json("status", *folder)["versions"] == ["00000001", "00000002"]
    for engine in ((), ("--spark",)):
        older = accord_json("sql", question, "--version", "1", *engine, *folder)
        assert older == answer


@pytest.mark.usefixtures("one_session")
def test_an_empty_landing_is_said(tmp_path: Path) -> None:
    assert "Nothing has landed" in accord("run", "--folder", str(tmp_path))
    assert "Nothing is published yet" in accord("status", "--folder", str(tmp_path))
    with pytest.raises(PipelineError, match="nothing is published yet"):
        accord("sql", "SELECT 1", "--folder", str(tmp_path))


@pytest.mark.parametrize(
    "text", ["DROP TABLE members", "insert into members select 1", "", "set a=b", "-- nothing"]
)
def test_only_questions_are_taken(text: str) -> None:
    with pytest.raises(PipelineError, match="only queries"):
        require_query(text)


def test_a_setting_of_spark_is_a_name_and_a_value(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["run", "--folder", str(tmp_path), "--conf", "nonsense"])
    assert result.exit_code == 2
    both = ["run", "--folder", str(tmp_path), "--master", "local", "--remote", "sc://localhost"]
    assert CliRunner().invoke(app, both).exit_code == 2


@pytest.mark.parametrize("verb", [("init",), ("run",), ("status",), ("sql", "SELECT 1")])
def test_without_the_extra_every_verb_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: tuple[str, ...]
) -> None:
    monkeypatch.setattr(session, "find_spec", lambda _name: None)
    with pytest.raises(PipelineError, match=r"pip install 'accord\[pipeline\]'"):
        accord(*verb, "--folder", str(tmp_path))


@pytest.mark.usefixtures("one_session")
@pytest.mark.long
def test_run_on_runs_whenever_something_has_landed(tmp_path: Path, spark: "SparkSession") -> None:
    layout, stop = Layout(tmp_path), threading.Event()
    portions = GeneratedHistory(400, 4, streams=(streams.BUS_CALLS,)).portions()
    first, *others = slices(portions, 3, 4)
    land(Landing(layout.landing), first)
    outcomes: list[RunOutcome] = []

    def each(outcome: RunOutcome) -> None:
        outcomes.append(outcome)
        if others:
            land(Landing(layout.landing), others.pop(0))
        else:
            stop.set()

    runner.run_continuously(
        layout, runner.SparkTarget(), every=0.01, stop=stop, each=each, definitions=SMALL
    )
    assert [outcome.version for outcome in outcomes] == ["00000001", "00000002", "00000003"]
    landed = [outcome.accounts[0].landed for outcome in outcomes]
    assert landed == sorted(set(landed))
    assert bring_up(layout, spark).rows["bronze"] == 0


@pytest.mark.usefixtures("one_session")
def test_a_refreshed_layer_comes_to_the_same_account(tmp_path: Path, spark: "SparkSession") -> None:
    layout = Layout(tmp_path)
    generate(layout.root, events=400, seed=6, streams=(streams.BUS_CALLS,))
    before = bring_up(layout, spark)
    after = runner.refresh(layout, "checked", definitions=SMALL)
    assert after.accounts == before.accounts
    assert after.rows["bronze"] == 0
    assert after.rows["checked"] == before.rows["checked"]
    assert after.built == ["traffic", "busiest"]


def test_a_folder_follows_the_landing_of_the_settings_but_one_with_segments_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCORD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ACCORD_PIPELINE__LANDING", str(tmp_path / "landing"))
    history = GeneratedHistory(400, 4, streams=(streams.BUS_CALLS,))
    land(Landing(tmp_path / "landing"), history.portions())
    tables = ("--folder", str(tmp_path / "tables"))
    assert accord_json("status", *tables)["waiting"][streams.BUS_CALLS] > 0
    generate(tmp_path / "own", events=400, seed=9, streams=(streams.RELAY_OUTBOUND,))
    waiting = accord_json("status", "--folder", str(tmp_path / "own"))["waiting"]
    assert list(waiting) == [streams.RELAY_OUTBOUND]


@pytest.mark.parametrize("url", ["s3a://bucket/history", "hdfs://name/history"])
def test_a_folder_that_is_a_url_is_refused_and_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PipelineError, match="this is a URL"):
        accord("init", "--folder", url)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("one_session")
def test_a_continuous_run_outlives_an_error_that_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, stop = Layout(tmp_path), threading.Event()
    land(Landing(layout.landing), GeneratedHistory(400, 4, streams=(streams.BUS_CALLS,)).portions())
    errors = [PipelineError("the store answered 503"), PipelineError("Spark's JVM has ended")]
    whole = runner.run

    def run(*words: Any, **options: Any) -> RunOutcome:
        if errors:
            raise errors.pop(0)
        return whole(*words, **options)

    monkeypatch.setattr(runner, "run", run)
    failed: list[PipelineError] = []
    outcomes: list[RunOutcome] = []

    def each(outcome: RunOutcome) -> None:
        outcomes.append(outcome)
        stop.set()

    runner.run_continuously(
        layout,
        runner.SparkTarget(),
        every=0.01,
        stop=stop,
        each=each,
        failed=failed.append,
        definitions=SMALL,
    )
    assert [error.what for error in failed] == ["the store answered 503", "Spark's JVM has ended"]
    assert [outcome.version for outcome in outcomes] == ["00000001"]
