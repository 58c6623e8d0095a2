"""What the AsyncAPI document of a contract or a catalog says."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from hypothesis import given, settings
from tests.fakes.strategies import manifests

from accord.contracts import ContractError, asyncapi, digest
from accord.contracts.export import asyncapi_schema
from accord.testing import HarnessError, nodejs

pytestmark = pytest.mark.slow

NODE = Path(__file__).parents[2] / "node"

THING = {
    "type": "object",
    "properties": {"id": {"type": "string"}, "at": {"type": "object"}, "$ref": {"type": "string"}},
    "required": ["id"],
}
CONTRACT: dict[str, Any] = {
    "format": "trellis.contract.v1",
    "id": "things@v2",
    "displayName": "Things",
    "description": "Has things.",
    "kind": "service",
    "schemas": {"Thing": THING, "Anything": True, "Größe": False},
    "capabilities": {"things::read": {"displayName": "Read", "description": "See."}},
    "rpc": {
        "Thing.Get": {
            "version": "v1",
            "subject": "rpc.v1.Thing.Get",
            "input": {"schema": "Thing"},
            "output": {"schema": "Anything"},
            "capabilities": {"call": ["things::read"]},
            "errors": [{"type": "Missing"}],
            "docs": {"summary": "Get one.", "markdown": "# Get"},
        }
    },
    "operations": {
        "Thing.Make": {
            "version": "v1",
            "subject": "operations.v1.Thing.Make",
            "input": {"schema": "Thing"},
            "progress": {"schema": "Größe"},
            "output": {"schema": "Thing"},
            "signals": {"weiter?": {"input": {"schema": "Thing"}}},
            "cancel": True,
        }
    },
    "events": {
        "Größe!": {
            "version": "v1",
            "subject": "events.v1.x?#.{/id}.{/id}",
            "params": ["/id", "/id"],
            "event": {"schema": "Thing"},
        }
    },
    "feeds": {
        "Thing.All": {
            "version": "v1",
            "subject": "feeds.v1.Thing.All",
            "input": {"schema": "Anything"},
            "event": {"schema": "Thing"},
        }
    },
    "jobs": {"secret": {"payload": {"schema": "Thing"}}},
}


def catalog(*contracts: dict[str, Any]) -> dict[str, Any]:
    entries = [
        {
            "id": one["id"],
            "digest": digest(one),
            "displayName": one["displayName"],
            "description": one["description"],
        }
        for one in contracts
    ]
    return {"format": "trellis.catalog.v1", "contracts": entries}


def other_digest() -> dict[str, Any]:
    other: dict[str, Any] = json.loads(json.dumps(CONTRACT))
    other["schemas"]["Thing"]["properties"]["more"] = {"type": "integer"}
    return other


def references(value: Any) -> list[str]:
    """Every reference in a document, whatever stands around it."""
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [found for part in value.values() for found in references(part)]
    if isinstance(value, list):
        return [found for part in value for found in references(part)]
    return []


def leads_somewhere(document: dict[str, Any], reference: str) -> bool:
    place: Any = document
    for step in reference.removeprefix("#/").split("/"):
        if step not in place:
            return False
        place = place[step]
    return True


def test_the_owner_receives_requests_and_sends_events() -> None:
    operations = asyncapi(CONTRACT)["operations"]
    assert {name: one["action"] for name, one in operations.items()} == {
        "rpc.Thing.Get": "receive",
        "operations.Thing.Make": "receive",
        "operations.Thing.Make.control": "receive",
        "events.Gr_e_": "send",
        "feeds.Thing.All": "receive",
    }
    get = operations["rpc.Thing.Get"]
    assert get["x-capabilities"] == {"call": ["things::read"]}
    assert get["x-errors"] == ["Missing"]
    assert (get["summary"], get["description"]) == ("Get one.", "# Get")


def test_subjects_are_the_addresses_of_channels() -> None:
    channels = asyncapi(CONTRACT)["channels"]
    addresses = {channel["address"] for channel in channels.values()}
    assert addresses == {
        None,
        "rpc.v1.Thing.Get",
        "operations.v1.Thing.Make",
        "operations.v1.Thing.Make.control",
        "events.v1.x?#.{id}.{id_2}",
        "feeds.v1.Thing.All",
    }
    assert channels["events.Gr_e_"]["parameters"] == {
        "id": {"location": "$message.payload#/id"},
        "id_2": {"location": "$message.payload#/id"},
    }


def test_a_control_channel_takes_exactly_the_actions_that_there_are() -> None:
    messages = asyncapi(CONTRACT)["channels"]["operations.Thing.Make.control"]["messages"]
    assert list(messages) == ["get", "wait", "watch", "cancel", "signal.weiter_"]


def test_what_others_cannot_reach_is_left_out() -> None:
    assert "secret" not in json.dumps(asyncapi(CONTRACT))


def test_a_catalog_has_the_surfaces_of_every_contract_that_is_given() -> None:
    known, unknown = CONTRACT, {**CONTRACT, "id": "others@v1", "capabilities": {}}
    document = asyncapi(catalog(known, other_digest(), unknown), [known, other_digest()])
    assert len(document["operations"]) == 10
    documented_ = {
        (one["id"], one["documented"]): one["digest"] for one in document["info"]["x-contracts"]
    }
    assert documented_.keys() == {("things@v2", True), ("others@v1", False)}


def test_a_contract_that_a_catalog_does_not_list_is_left_out() -> None:
    assert asyncapi(catalog(), [CONTRACT])["channels"] == {}


@pytest.mark.parametrize("value", [None, 5, [], {}, {"format": "trellis.contract.v1"}])
def test_what_is_no_contract_is_refused(value: Any) -> None:
    with pytest.raises(ContractError) as caught:
        asyncapi(value)
    assert caught.value.findings


@pytest.mark.parametrize("contracts", [None, {}, [5], [{"digest": 5}], [{"id": "a@v1"}]])
def test_what_is_no_catalog_is_refused(contracts: Any) -> None:
    with pytest.raises(ContractError, match="not a catalog"):
        asyncapi({"format": "trellis.catalog.v1", "contracts": contracts})


@given(manifests())
@settings(max_examples=50)
def test_every_reference_of_a_document_leads_somewhere(manifest: dict[str, Any]) -> None:
    document = asyncapi(manifest)
    assert all(leads_somewhere(document, reference) for reference in references(document))
    for name in (
        *document["channels"],
        *document["operations"],
        *document["components"]["schemas"],
    ):
        assert re.fullmatch(r"[A-Za-z0-9._-]+", name)


@given(manifests())
@settings(max_examples=25)
def test_a_document_does_not_depend_on_the_order_of_members(manifest: dict[str, Any]) -> None:
    turned = json.loads(json.dumps(manifest), object_pairs_hook=lambda pairs: dict(pairs[::-1]))
    assert json.dumps(asyncapi(manifest), sort_keys=True) == json.dumps(
        asyncapi(turned), sort_keys=True
    )


@pytest.mark.parametrize(
    ("schema", "written"),
    [
        (True, True),
        ({"pattern": r"^[a-z]+(?:\.\d{2,3})?$"}, {"pattern": r"^[a-z]+(?:\.\d{2,3})?$"}),
        ({"pattern": r"(?i)a"}, {}),
        ({"pattern": r"\p{L}"}, {}),
        ({"pattern": r"(?P<x>a)"}, {}),
        ({"patternProperties": {r"\A": True, "a": False}}, {"patternProperties": {"a": False}}),
        ({"const": {"$ref": "x"}}, {}),
        ({"examples": [[{"$ref": 1}]], "default": {"$id": 1}}, {"default": {"$id": 1}}),
        ({"dependentRequired": {"a": ["b"]}}, {"dependencies": {"a": ["b"]}}),
        ({"unevaluatedProperties": False, "discriminator": {}, "x": 1}, {}),
        ({"items": [True, {"$id": "x"}], "additionalItems": False}, None),
    ],
)
def test_schemas_are_written_in_the_words_of_asyncapi(schema: Any, written: Any) -> None:
    if written is None:
        written = {"items": [True, {}], "additionalItems": False}
    assert asyncapi_schema(schema) == written


def test_ten_thousand_surfaces_of_one_spelling_are_kept_apart() -> None:
    surface = {**CONTRACT["rpc"]["Thing.Get"]}
    many = {chr(0x4E00 + n): {**surface, "subject": f"rpc.{n}"} for n in range(10_000)}
    document = asyncapi({**CONTRACT, "rpc": many})
    assert sum(name.startswith("rpc.") for name in document["operations"]) == 10_000


@pytest.fixture(scope="module")
def parse(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[list[Any]], list[dict[str, Any]]]:
    """The official parser, installed by npm into pytest's own cache."""
    cache: pytest.Cache | None = getattr(request.config, "cache", None)
    home = cache.mkdir("accord-node") if cache else tmp_path_factory.mktemp("node")
    try:
        with FileLock(home.with_suffix(".lock")):
            nodejs.install_packages((NODE / "package.json").read_bytes(), home)
    except HarnessError as error:
        pytest.skip(f"no parser: {error}")

    def run(documents: list[Any]) -> list[dict[str, Any]]:
        answer = subprocess.run(
            [nodejs.node_program(), str(NODE / "parse_asyncapi.mjs")],
            input=json.dumps(documents),
            cwd=home,
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        answers: list[dict[str, Any]] = json.loads(answer.stdout)
        return answers

    return run


def check(parse: Callable[[list[Any]], list[dict[str, Any]]], documents: list[Any]) -> None:
    for document, answer in zip(documents, parse(documents), strict=True):
        assert answer["problems"] == []
        assert set(answer["operations"]) == set(document["operations"])


HOSTILE = {
    "const": {"$ref": "#/nowhere"},
    "$id": "urn:example:thing",
    "$anchor": "A",
    "pattern": "(?i)x",
    "patternProperties": {r"\A[[:alpha:]]": True},
    "discriminator": {"propertyName": "x"},
    "externalDocs": 5,
    "schema": {"type": "nonsense"},
    "schemaFormat": 5,
    "x-": 1,
    "nullable": "no",
    "examples": [{"$ref": "file:///etc/passwd"}],
    "$comment": "x",
    "dependentSchemas": {"$ref": {"type": "string"}},
    "properties": {"$ref": {"type": "string"}, "schema": True, "x-y": False},
}


def test_the_official_parser_takes_the_documents(
    parse: Callable[[list[Any]], list[dict[str, Any]]],
) -> None:
    hostile = {**CONTRACT, "schemas": {**CONTRACT["schemas"], "Anything": HOSTILE}}
    both = [CONTRACT, other_digest()]
    check(parse, [asyncapi(CONTRACT), asyncapi(hostile), asyncapi(catalog(*both), both)])


def test_the_official_parser_takes_a_catalog_of_known_contracts(
    parse: Callable[[list[Any]], list[dict[str, Any]]], vectors: Callable[[str], Any]
) -> None:
    cases = vectors("contracts/digests.json")["cases"]
    known = [case["manifest"] for case in cases][:12]
    check(parse, [asyncapi(catalog(*known), known)])


@pytest.mark.long
def test_the_official_parser_takes_every_known_contract(
    parse: Callable[[list[Any]], list[dict[str, Any]]], vectors: Callable[[str], Any]
) -> None:
    cases = vectors("contracts/digests.json")["cases"]
    check(parse, [asyncapi(case["manifest"]) for case in cases])
