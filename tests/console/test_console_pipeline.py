"""Pipeline: how it stands, commands that run beside the station, the report, and what-if."""

import asyncio
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.console.consoles import EVIL, opened
from tests.console.planes import benched, until

from accord.console import ConsoleError
from accord.console.pages import pipeline
from accord.console.parts import CommandRun, CommandRunner
from accord.pipeline.folder import Layout


def published(home: Path, refusals: list[dict[str, Any]]) -> Layout:
    """A pipeline's folder as a run leaves it."""
    layout = Layout(home / "pipeline")
    version = layout.version("00000003")
    for name, rows in (("refusals", refusals), ("traffic", [{"stream": "x"}] * 3)):
        (version / name).mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows), version / name / "part-0.parquet")
    account = {"stream": "relay.inbound", "landed": 9, "accepted": 7, "quarantined": 2}
    account |= {"duplicates": 0, "bronze": 9, "checked": 9}
    facts = {"version": "00000003", "published_at": 1_700_000_000_000, "accounts": [account]}
    (version / "version.json").write_text(json.dumps(facts))
    layout.current.write_text("00000003")
    layout.runs.mkdir()
    run = {"at": 1_700_000_000_000, "version": "00000003", "rows": {"bronze": 9}, "built": ["x"]}
    run |= {"seconds": {"gold": 1.25}, "spoilt": [], "accounts": [account]}
    (layout.runs / "runs.jsonl").write_text(f'broken\n{json.dumps(run)}\n{{"at": 1}}\n[]\n\n')
    return layout


async def test_before_the_first_run_the_page_says_that_nothing_is_there(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        shown = (await browser.get("pipeline")).text
        assert "nothing yet" in shown
        assert "accord pipeline run" in shown
        assert (await browser.get("pipeline/report")).status_code == 404
        told = (await browser.get("pipeline/live")).text
        assert "event: end" in told


async def test_what_is_published_is_shown_with_rows_refusals_and_runs(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        refused = {"stream": "relay.inbound", "rule": "envelope.shape", "reason": f"bad {EVIL}"}
        layout = published(found.home, [{**refused, "records": 1}, {**refused, "records": 41}])
        shown = (await browser.get("pipeline")).text
        assert "version 00000003" in shown
        assert "<code>traffic</code></th><td>3</td>" in shown
        assert "<code>envelope.shape</code></th><td>relay.inbound</td><td>42</td>" in shown
        assert '<th scope="row">00000003</th><td>9</td><td>9</td><td>2</td>' in shown
        assert EVIL not in shown
        (layout.version("00000003") / "traffic" / "part-0.parquet").write_bytes(b"damaged")
        assert "<code>traffic</code></th><td>?</td>" in (await browser.get("pipeline")).text
        (layout.version("00000003") / "refusals" / "part-0.parquet").write_bytes(b"damaged")
        assert 'role="alert"' in (await browser.get("pipeline")).text
        layout.current.write_text("nonsense")
        assert "cannot be read" in (await browser.get("pipeline")).text


async def test_without_the_libraries_the_page_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accord.pipeline.session.find_spec", lambda _name: None)
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        shown = await browser.get("pipeline")
        assert shown.status_code == 200
        assert "accord[pipeline]" in shown.text


async def test_a_run_is_watched_from_its_start_to_its_end(tmp_path: Path) -> None:
    async with benched(tmp_path) as (bench, browser):
        started = (await browser.send("pipeline/run")).text
        assert "Started: accord pipeline run" in started
        assert 'sse-connect="/console/pipeline/live"' in started
        await until(lambda: bench.children.latest is not None and bool(bench.children.latest.step))
        assert "starting Spark" in (await browser.get("pipeline")).text
        second = await browser.send("pipeline/report")
        assert second.status_code == 409
        assert "another command is under way" in second.text.lower()
        live = asyncio.create_task(browser.get("pipeline/live"))
        bench.go()
        told = (await live).text
        assert "Published version 00000007." in told
        assert told.rstrip().endswith("event: end\ndata:")
        assert bench.arguments == [
            "pipeline",
            "run",
            f"--home={bench.found.home}",
            f"--landing={bench.found.home / 'landing'}",
        ]
        shown = (await browser.get("pipeline")).text
        assert "left out: a segment" in shown
        assert "<script>" not in shown.replace("<script src", "")
        assert "sse-connect" not in shown


async def test_a_command_that_fails_says_why(tmp_path: Path) -> None:
    async with benched(tmp_path) as (bench, browser):
        bench.go("fail")
        await browser.send("pipeline/run")
        assert (await bench.ended()).code == 1
        shown = (await browser.get("pipeline")).text
        assert "error: Java is missing &lt;script&gt;" in shown
        assert '<span class="state ill">failed</span>' in shown


async def test_a_what_if_is_asked_with_what_was_typed(tmp_path: Path) -> None:
    async with benched(tmp_path) as (bench, browser):
        bench.go("found")
        home = f"--home={bench.found.home}"
        await browser.send("pipeline/policy", {"policy": '{"/relay/policy": []}'})
        await bench.ended()
        assert bench.arguments == ["pipeline", "whatif", "policy", home, "-"]
        assert bench.given == {"/relay/policy": []}
        shown = (await browser.get("pipeline")).text
        assert '<span class="state well">done</span>' in shown
        await browser.send("pipeline/contract", {"contract": '{"id": "shop@v1"}'})
        await bench.ended()
        assert bench.arguments == ["pipeline", "whatif", "contract", home, "-"]
        assert bench.given == {"id": "shop@v1"}
        asked = {"node": "--remote=evil", "upto": "12", "community": "a b"}
        await browser.send("pipeline/revoke", asked)
        await bench.ended()
        options = ["--upto=12", "--community=a b", "--", "--remote=evil"]
        assert bench.arguments == ["pipeline", "whatif", "revoke", home, *options]


async def test_a_question_that_is_none_starts_nothing(tmp_path: Path) -> None:
    async with benched(tmp_path) as (bench, browser):
        for act, given in (
            ("policy", {}),
            ("policy", {"policy": "{"}),
            ("policy", {"policy": "[" * 50_000}),
            ("contract", {"contract": EVIL}),
            ("contract", {"contract": "\ud800".encode("utf-8", "surrogatepass").decode("latin1")}),
            ("revoke", {}),
            ("revoke", {"node": "a\0b"}),
            ("revoke", {"node": "x" * 300}),
            ("revoke", {"node": "kitchen", "upto": "-1"}),
            ("revoke", {"node": "kitchen", "upto": "²"}),
            ("revoke", {"node": "kitchen", "community": "\n\x1b"}),
        ):
            refused = await browser.send(f"pipeline/{act}", given)
            assert refused.status_code == 400, (act, given)
            assert 'role="alert"' in refused.text
            assert EVIL not in refused.text
        assert bench.children.latest is None


async def test_a_report_is_made_and_shown_where_it_can_do_nothing(tmp_path: Path) -> None:
    async with benched(tmp_path) as (bench, browser):
        bench.go()
        await browser.send("pipeline/report")
        await bench.ended()
        out = bench.found.home / "pipeline" / "report.html"
        assert f"--out={out}" in bench.arguments
        out.parent.mkdir()
        out.write_text("<h1>Report</h1>")
        assert 'href="/console/pipeline/report"' in (await browser.get("pipeline")).text
        got = await browser.get("pipeline/report")
        assert got.text == "<h1>Report</h1>"
        policy = got.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert policy.endswith("sandbox")


async def test_a_command_is_stopped_as_by_a_key(tmp_path: Path) -> None:
    # Where the tests run in the background of a shell, they were told to ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    async with benched(tmp_path) as (bench, browser):
        assert "It was stopped" in (await browser.send("pipeline/stop")).text
        await browser.send("pipeline/run")
        await until(lambda: bench.children.latest is not None and bool(bench.children.latest.step))
        assert "It was stopped" in (await browser.send("pipeline/stop")).text
        work = await bench.ended()
        assert work.code == -signal.SIGINT
        bench.go()
        assert "Started" in (await browser.send("pipeline/run")).text
        assert (await bench.ended()).code == 0


async def test_no_more_is_kept_of_what_a_command_prints_than_fits(tmp_path: Path) -> None:
    async with benched(tmp_path) as (bench, browser):
        bench.go("much")
        await browser.send("pipeline/run")
        assert len((await bench.ended()).printed) == 1 << 20


async def test_a_command_that_cannot_be_started_is_no_end_of_all_commands() -> None:
    children = CommandRunner(program=("/nowhere/at-all",))
    for _ in range(2):
        with pytest.raises(ConsoleError, match="cannot be started"):
            await children.start("x", [])
    with pytest.raises(ConsoleError):
        await CommandRunner().start("x", ["\0"])


async def test_a_real_command_answers_and_refuses(tmp_path: Path) -> None:
    children = CommandRunner()
    work = await children.start("status", ["pipeline", "status", f"--home={tmp_path}"])
    await until(lambda: work.has_ended)
    assert (work.code, work.printed.strip()) == (0, "Nothing is published yet.")
    work = await children.start("sql", ["pipeline", "sql", "DROP TABLE x", f"--home={tmp_path}"])
    await until(lambda: work.has_ended)
    assert work.code == 1
    assert work.said[0].startswith("error: ")
    await children.stop()


@pytest.mark.parametrize(
    ("drawn", "step", "said"),
    [
        (["plain words\r\n"], "", ["plain words"]),
        (["\r\x1b[2Kbron", "ze   ━━━ 0:00:02"], "bronze", []),
        (["bronze ━━ 1\r\x1b[2Ksilver ━━ 2\r"], "silver", []),
        (["\r\x1b[2Kbronze                    0:00:39\r"], "bronze", []),
        (["\x1b[?25l\x1b[1Agold ╸ x\n", "\x1b[?25h"], "gold", []),
        (["error: a\nerror: b\n\n"], "", ["error: a", "error: b"]),
        (["\x1b" * 1000 + "[" * 1000], "", None),
    ],
)
def test_a_progress_bar_is_told_from_words(
    drawn: list[str], step: str, said: list[str] | None
) -> None:
    work = CommandRun("x", 0.0)
    for part in drawn:
        work.add_output(part)
    work.end(0)
    assert work.step == step
    assert said is None or work.said == said


def test_what_a_command_says_without_end_is_kept_within_bounds() -> None:
    work = CommandRun("x", 0.0)
    for number in range(200):
        work.add_output(f"line {number}\n")
        work.add_output("y" * 100_000)
    assert len(work.said) <= 50
    assert sum(map(len, work.said)) <= 50 * 4096


def test_the_record_of_runs_survives_whatever_stands_in_it(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    assert pipeline.latest_runs(layout) == ()
    layout.runs.mkdir()
    (layout.runs / "runs.jsonl").write_bytes(os.urandom(2000) + b"\n" + b"[" * 100_000 + b"\n")
    assert pipeline.latest_runs(layout) == ()


@pytest.mark.long
@pytest.mark.timeout(1200)
async def test_a_real_run_publishes_answers_and_is_reported(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        children = found.parts.children
        place = f"--to={found.home / 'pipeline'}"
        generated = await children.start(
            "generate", ["pipeline", "generate", place, "--events=400"]
        )
        await ended(generated)
        steps: set[str] = set()
        asked = {"policy": '{"/relay/policy": []}', "node": "nobody"}
        for act, code in (("run", 0), ("report", 0), ("policy", 0), ("revoke", 1)):
            await browser.send(f"pipeline/{act}", asked)
            work = children.latest
            assert work is not None
            await ended(work, steps)
            assert work.code == code, work
        assert {"starting Spark", "silver", "reading history"} <= steps
        shown = (await browser.get("pipeline")).text
        assert re.search(r"<code>traffic</code></th><td>[1-9]", shown)
        assert "error: " in shown
        assert "<html" in (await browser.get("pipeline/report")).text


async def ended(work: CommandRun, steps: set[str] | None = None) -> None:
    """Wait for the end of a command that is slow, and note its steps."""
    async with asyncio.timeout(900):
        while not work.has_ended:
            if steps is not None:
                steps.add(work.step)
            await asyncio.sleep(0.05)
