"""Runs as OpenLineage events: their form, the file, and the receiver."""

import ipaddress
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.pipeline.folders import SMALL

from accord.pipeline.errors import PipelineError
from accord.pipeline.folder import Layout, initialise
from accord.pipeline.generate import generate
from accord.pipeline.runs import create_draft, publish, run_once, runner, status
from accord.pipeline.runs.lineage import (
    Dataset,
    Lineage,
    LineageRun,
    LineageTarget,
    run_event,
    state,
)
from accord.web.outgoing import OutgoingPolicy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUN = LineageRun("6f0c2ba5-30a2-4b0c-9a52-4f2f1d7b7c11", "pipeline.run", "1.2.3")
FACET = {
    "type": "object",
    "required": ["_producer", "_schemaURL"],
    "properties": {
        "_producer": {"type": "string", "format": "uri"},
        "_schemaURL": {"type": "string", "format": "uri"},
    },
}


def facet(required: list[str], **members: Any) -> dict[str, Any]:
    return {"allOf": [FACET, {"required": required, "properties": members}]}


def dataset(side: str) -> dict[str, Any]:
    counts = {"rowCount": {"type": "integer"}, "size": {"type": "integer"}}
    field = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}
    known = {
        "schema": facet(["fields"], fields={"type": "array", "items": field}),
        "version": facet(["datasetVersion"], datasetVersion={"type": "string"}),
    }
    return {
        "type": "object",
        "required": ["namespace", "name"],
        "properties": {
            "namespace": {"type": "string"},
            "name": {"type": "string"},
            "facets": {"type": "object", "properties": known, "additionalProperties": FACET},
            f"{side}Facets": {
                "type": "object",
                "properties": {f"{side}Statistics": facet(["rowCount"], **counts)},
                "additionalProperties": FACET,
            },
        },
    }


def event_schema() -> dict[str, Any]:
    """The RunEvent of OpenLineage 2-0-2, with the facets that are used.

    Written down here by the public specification at openlineage.io, not copied from it: the rules
    that it states for these members, and none for the others.
    """
    text = {"type": "string"}
    error = facet(["message", "programmingLanguage"], message=text, programmingLanguage=text)
    run_facets = {"properties": {"errorMessage": error}, "additionalProperties": FACET}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "required": ["eventTime", "producer", "schemaURL", "run", "job"],
        "properties": {
            "eventType": {"enum": ["START", "RUNNING", "COMPLETE", "ABORT", "FAIL", "OTHER"]},
            "eventTime": {"type": "string", "format": "date-time"},
            "producer": {"type": "string", "format": "uri"},
            "schemaURL": {"type": "string", "format": "uri"},
            "run": {
                "type": "object",
                "required": ["runId"],
                "properties": {
                    "runId": {"type": "string", "format": "uuid"},
                    "facets": {"type": "object", **run_facets},
                },
            },
            "job": {
                "type": "object",
                "required": ["namespace", "name"],
                "properties": {
                    "namespace": text,
                    "name": text,
                    "facets": {"type": "object", "additionalProperties": FACET},
                },
            },
            "inputs": {"type": "array", "items": dataset("input")},
            "outputs": {"type": "array", "items": dataset("output")},
        },
    }


VALIDATOR = jsonschema_rs.Draft202012Validator(event_schema(), validate_formats=True)


def events(layout: Layout) -> list[dict[str, Any]]:
    """The events of a folder, each of which keeps the schema of `event_schema`."""
    lines = (layout.runs / "lineage.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    for each in found:
        VALIDATOR.validate(each)
    return found


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(tmp_path / "folder")
    initialise(made)
    name = create_draft(made)
    (made.version(name) / "members").mkdir()
    table = pa.Table.from_pylist([{"name": "ada", "age": 36}, {"name": "bob", "age": 7}])
    pq.write_table(table, made.version(name) / "members" / "part-0.parquet")
    publish(made, name, {"accounts": [], "published_at": 1})
    return made


def test_events_keep_the_schema_and_say_what_went_in_and_out() -> None:
    read = Dataset("s3://bucket/landing", "bus.calls", [("seq", "int64")], 7)
    written = Dataset("/srv/gold", "members", [("name", "string")], 2, 900, "00000001")
    ended = run_event(RUN, "COMPLETE", 1_700_000_000_123, [read], [written])
    failed = run_event(RUN, "FAIL", 1_700_000_000_123, [read], error="the disk is full")
    for each in (run_event(RUN, "START", 0), ended, failed):
        VALIDATOR.validate(each)
    assert ended["eventTime"] == "2023-11-14T22:13:20.123Z"
    (source,), (target,) = ended["inputs"], ended["outputs"]
    assert (source["namespace"], source["name"]) == ("s3://bucket", "landing/bus.calls")
    assert source["inputFacets"]["inputStatistics"]["rowCount"] == 7
    assert (target["namespace"], target["name"]) == ("file", "/srv/gold/members")
    assert target["facets"]["schema"]["fields"] == [{"name": "name", "type": "string"}]
    assert target["outputFacets"]["outputStatistics"]["rowCount"] == 2
    assert failed["run"]["facets"]["errorMessage"]["message"] == "the disk is full"


@pytest.mark.parametrize("place", ["eventTime", "producer", "run", "job"])
def test_the_schema_refuses_an_event_that_lacks_a_member(place: str) -> None:
    event = run_event(RUN, "START", 0)
    del event[place]
    assert not VALIDATOR.is_valid(event)
    event = run_event(LineageRun("seven", "pipeline.run", "1"), "START", 0)
    assert not VALIDATOR.is_valid(event)


def test_a_run_leaves_its_start_and_its_end_with_schema_and_rows(layout: Layout) -> None:
    with Lineage(layout).of_run("pipeline.run") as end:
        end("00000001", {})
    started, ended = events(layout)
    assert [started["eventType"], ended["eventType"]] == ["START", "COMPLETE"]
    assert started["run"]["runId"] == ended["run"]["runId"]
    (table,) = ended["outputs"]
    assert table["outputFacets"]["outputStatistics"]["rowCount"] == 2
    assert [each["name"] for each in table["facets"]["schema"]["fields"]] == ["name", "age"]
    assert table["facets"]["version"]["datasetVersion"] == "00000001"


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (PipelineError("the records do not add up"), "FAIL", "the records do not add up"),
        (ValueError("password=x"), "FAIL", "ValueError"),
        (KeyboardInterrupt(), "ABORT", None),
    ],
)
def test_a_run_that_fails_says_so_without_the_text_of_foreign_errors(
    layout: Layout, error: BaseException, kind: str, message: str | None
) -> None:
    with pytest.raises(type(error)), Lineage(layout).of_run("pipeline.run"):
        raise error
    ended = events(layout)[-1]
    assert ended["eventType"] == kind
    assert ended["run"]["facets"].get("errorMessage", {}).get("message") == message


@contextmanager
def receiver(*statuses: int) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """A server on loopback that answers with these statuses, then 201; and what it was sent."""
    told: list[tuple[str, Any]] = []
    answers = list(statuses)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            status = answers.pop(0) if answers else 201
            if status == 201:
                told.append((self.headers.get("authorization", ""), body))
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/api/v1/lineage", told
        finally:
            server.shutdown()
            thread.join()


def target(url: str) -> LineageTarget:
    port = int(url.split(":")[2].partition("/")[0])
    networks = (ipaddress.ip_network("127.0.0.0/8"),)
    return LineageTarget(url, OutgoingPolicy(True, frozenset({port}), networks), "the-token")


def test_events_are_posted_with_the_token_and_wait_for_a_receiver_that_is_busy(
    layout: Layout,
) -> None:
    with receiver(503) as (url, told):
        with Lineage(layout, target=target(url)).of_run("pipeline.run"):
            assert told == []
            assert status(layout)["lineage_failed"] == "the receiver answered 503"
        assert [body["eventType"] for _, body in told] == ["START", "COMPLETE"]
        assert {token for token, _ in told} == {"Bearer the-token"}
    assert [body for _, body in told] == events(layout)
    assert status(layout)["lineage_failed"] is None
    assert "the-token" not in repr(target(url))


def test_an_event_that_is_refused_for_good_does_not_hold_up_the_others(layout: Layout) -> None:
    with receiver(422) as (url, told), Lineage(layout, target=target(url)).of_run("pipeline.run"):
        pass
    assert [body["eventType"] for _, body in told] == ["COMPLETE"]


def test_events_do_not_go_where_the_settings_do_not_let_them(layout: Layout) -> None:
    with receiver() as (url, told):
        guarded = LineageTarget(url, OutgoingPolicy())
        with Lineage(layout, target=guarded).of_run("pipeline.run"):
            pass
    assert told == []
    assert state(layout) == {"posted": 0, "failed": "the URL is not https"}
    assert len(events(layout)) == 2


def test_a_run_goes_on_where_events_cannot_be_written(layout: Layout) -> None:
    (layout.runs / "lineage.jsonl").mkdir()
    with Lineage(layout).of_run("pipeline.run") as end:
        end("00000001", {})
    assert "cannot be written" in state(layout)["failed"]


@pytest.mark.slow
def test_a_run_by_spark_tells_of_streams_layers_and_gold(
    tmp_path: Path, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "open_session", lambda *_, **__: nullcontext(spark))
    layout = Layout(tmp_path)
    truth = generate(tmp_path, events=400, seed=3)
    run_once(layout, definitions=SMALL)
    _, ended = events(layout)
    rows = {
        each["name"].rpartition("/")[2]: each["inputFacets"]["inputStatistics"]["rowCount"]
        for each in ended["inputs"]
    }
    assert rows == {stream: terms.landed for stream, terms in truth.streams.items()}
    written = {each["name"].rpartition("/")[2] for each in ended["outputs"]}
    assert written == {"bronze", "checked", "silver", "traffic", "busiest", "accounting"}
    run_once(layout, definitions=SMALL)
    assert len(events(layout)) == 2  # nothing was new, so nothing ran
