"""Contracts from documents of public services, and what each of them loses."""

import json
from pathlib import Path
from typing import Any

import pytest

from accord.contracts import ContractError, validate
from accord.contracts.imports import Imported, read_asyncapi, read_document, read_openapi
from accord.kernel.schema import compile_schema

DOCUMENTS = Path(__file__).parent / "documents"
LOSSES = json.loads((Path(__file__).parent / "losses.json").read_text())
FILES = sorted(DOCUMENTS.iterdir())


def imported(file: Path) -> Imported:
    name = file.name.partition(".")[0].replace("_", "-")
    return read_document(file.read_bytes(), f"{name}@v1")


def test_there_are_at_least_ten_documents_of_both_kinds() -> None:
    assert len(FILES) >= 10
    assert sum(".asyncapi" in file.name for file in FILES) >= 4


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_document_becomes_a_valid_contract_and_its_losses_are_listed(file: Path) -> None:
    read = imported(file)
    assert validate(read.manifest) == []
    assert read.manifest.get("rpc") or read.manifest.get("events")
    assert [list(loss) for loss in read.losses] == LOSSES[file.name]


def schema(manifest: dict[str, Any], section: str, name: str, part: str) -> Any:
    return compile_schema(manifest["schemas"][manifest[section][name][part]["schema"]])


def test_parameters_and_body_are_members_of_the_request() -> None:
    github = imported(DOCUMENTS / "github_issues.json").manifest
    request = schema(github, "rpc", "GithubIssues.IssuesCreate", "input")
    body = {"title": "It hangs", "labels": ["bug", {"name": "slow", "color": None}]}
    assert request.is_valid({"owner": "ann", "repo": "tools", "body": body})
    assert not request.is_valid({"owner": "ann", "repo": "tools"})
    assert not request.is_valid({"owner": "ann", "repo": "tools", "body": {"labels": []}})
    assert github["rpc"]["GithubIssues.IssuesCreate"]["errors"] == [
        {"type": "Http403Error"},
        {"type": "Http410Error"},
    ]


def test_older_and_newer_schemas_mean_what_they_meant() -> None:
    rates = imported(DOCUMENTS / "frankfurter.json").manifest
    reply = schema(rates, "rpc", "Frankfurter.Latest", "output")
    answer = {"base": "EUR", "date": "2026-01-01", "rates": {"USD": 1.1}}
    assert reply.is_valid(answer)
    assert not reply.is_valid({**answer, "rates": {"USD": 0}})
    quakes = imported(DOCUMENTS / "usgs_earthquakes.json").manifest
    reply = schema(quakes, "rpc", "UsgsEarthquakes.Query", "output")
    feature = {"id": "1", "geometry": {"type": "Point", "coordinates": [1, 2, 3]}}
    assert reply.is_valid({"type": "FeatureCollection", "features": [feature]})
    feature["geometry"] = {"type": "Point", "coordinates": [1, 2, "deep"]}
    assert not reply.is_valid({"type": "FeatureCollection", "features": [feature]})
    weather = imported(DOCUMENTS / "open_meteo.json").manifest
    reply = schema(weather, "rpc", "OpenMeteo.Forecast", "output")
    assert reply.is_valid({"hourly": {"precipitation": [0.1, None]}})
    assert not reply.is_valid({"hourly": {"precipitation": ["much"]}})


def test_a_token_of_an_address_is_found_in_the_payload() -> None:
    kraken = imported(DOCUMENTS / "kraken_ticker.asyncapi.json").manifest
    event = kraken["events"]["KrakenTicker.SendTicker"]
    assert event["params"] == ["/data/symbol"]
    assert event["subject"].endswith(".{/data/symbol}")


SMALL = {"openapi": "3.1.0", "info": {"title": "T", "version": "1"}}


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "is an object"),
        ({"swagger": "2.0"}, "OpenAPI 2 is not read"),
        ({"openapi": "4.0.0"}, "OpenAPI 4.0.0 is not read"),
        (SMALL, "no operation"),
        ({**SMALL, "paths": {"/": {"get": 3, "parameters": []}}}, "no operation"),
        ({**SMALL, "paths": {"/": {"$ref": "#/info/title"}}}, "no operation"),
    ],
)
def test_what_is_no_such_document_is_refused(document: Any, said: str) -> None:
    with pytest.raises(ContractError, match=said):
        read_openapi(document, "t@v1")


def test_an_older_asyncapi_is_refused() -> None:
    with pytest.raises(ContractError, match=r"AsyncAPI 2\.6\.0 is not read"):
        read_asyncapi({"asyncapi": "2.6.0"}, "t@v1")


def test_what_is_no_object_where_one_belongs_is_listed() -> None:
    text = {"$ref": "#/info/title"}
    kraken = json.loads((DOCUMENTS / "kraken_ticker.asyncapi.json").read_bytes())
    kraken["operations"]["other"] = kraken["channels"]["ticker"]["parameters"]["symbol"] = text
    read = read_asyncapi(kraken, "kraken@v1")
    assert [loss.message for loss in read.losses].count("an object was expected here") == 1
    assert len(read.manifest["events"]) == 1


def one(reply: Any, **components: Any) -> dict[str, Any]:
    content = {"application/json": {"schema": reply}}
    responses = {"200": {"content": content}}
    paths = {"/": {"get": {"operationId": "it", "responses": responses}}}
    return {**SMALL, "paths": paths, "components": {"schemas": components}}


def test_references_that_lead_nowhere_or_in_circles_are_listed() -> None:
    for reply in (
        {"$ref": "#/components/schemas/Gone"},
        {"$ref": "https://example.com/schema.json"},
        {"$ref": "#/components/schemas/Loop"},
    ):
        read = read_openapi(one(reply, Loop={"$ref": "#/components/schemas/Loop"}), "t@v1")
        assert read.losses


def test_references_that_multiply_are_refused() -> None:
    bomb = {
        f"S{n}": {"type": "array", "prefixItems": [{"$ref": f"#/components/schemas/S{n + 1}"}] * 10}
        for n in range(9)
    }
    with pytest.raises(ContractError, match="too large"):
        read_openapi(one({"$ref": "#/components/schemas/S0"}, **bomb, S9=True), "t@v1")


def test_a_schema_that_is_not_valid_accepts_everything_and_is_listed() -> None:
    read = read_openapi(one({"type": "nonsense"}), "t@v1")
    assert schema(read.manifest, "rpc", "T.It", "output").is_valid({"any": "thing"})
    assert any("not valid" in loss.message for loss in read.losses)


def test_yaml_is_read_as_json_has_it() -> None:
    text = (
        b"openapi: 3.1.0\ninfo: {title: T, version: 2020-01-01}\n"
        b"paths: {/: {get: {responses: {200: {description: OK}}}}}\n"
    )
    assert list(read_document(text, "t@v1").manifest["rpc"]) == ["T.Get"]
    with pytest.raises(ContractError, match="aliases"):
        read_document(b"openapi: &a 3.1.0\nb: *a\n", "t@v1")
    with pytest.raises(ContractError, match="neither JSON nor YAML"):
        read_document(b"openapi: [", "t@v1")
    with pytest.raises(ContractError, match="neither an OpenAPI"):
        read_document(b"{}", "t@v1")


def descriptors() -> bytes:
    from google.protobuf.descriptor_pb2 import (  # type: ignore[import-untyped]
        FileDescriptorSet,
    )

    files = FileDescriptorSet()
    file = files.file.add(name="clock.proto", package="clock", syntax="proto3")
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="WALL", number=0)
    kind.value.add(name="SAND", number=1)
    tick = file.message_type.add(name="Tick")
    tick.field.add(
        name="at_time", number=1, type=11, type_name=".google.protobuf.Timestamp", label=1
    )
    tick.field.add(name="count", number=2, type=3, label=1, json_name="count")
    tick.field.add(name="kinds", number=3, type=14, type_name=".clock.Kind", label=3)
    tick.field.add(name="before", number=4, type=11, type_name=".clock.Tick", label=1)
    tick.oneof_decl.add(name="choice")
    tick.field.add(name="left", number=5, type=9, label=1, oneof_index=0)
    service = file.service.add(name="Clock")
    for name, asking, answering in (
        ("Now", False, False),
        ("Watch", False, True),
        ("Set", True, False),
    ):
        service.method.add(
            name=name,
            input_type=".google.protobuf.Empty",
            output_type=".clock.Tick",
            client_streaming=asking,
            server_streaming=answering,
        )
    return bytes(files.SerializeToString())


def test_methods_become_rpcs_and_feeds() -> None:
    read = read_document(descriptors(), "clock@v1")
    assert list(read.manifest["rpc"]) == ["Clock.ClockNow"]
    assert list(read.manifest["feeds"]) == ["Clock.ClockWatch"]
    reply = schema(read.manifest, "rpc", "Clock.ClockNow", "output")
    assert reply.is_valid({"at_time": "2026-01-01T00:00:00Z", "count": "7", "kinds": ["SAND"]})
    assert not reply.is_valid({"count": 7})
    assert not reply.is_valid({"kinds": ["COOKOO"]})
    assert [loss.message for loss in read.losses] == [
        "a stream of requests; use an operation with signals",
        "a recursive message: from there on, any value is accepted",
        "that only one of these may be given",
    ]


def test_bytes_that_are_no_descriptors_are_refused() -> None:
    with pytest.raises(ContractError, match="no set of protobuf descriptors"):
        read_document(b"\n\xff\xff\xff\xffa.proto", "t@v1")
