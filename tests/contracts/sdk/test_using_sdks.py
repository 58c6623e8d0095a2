"""A generated package at work: with a transport that records, and a service that answers."""

import importlib
import inspect
import json
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from tests.fakes.strategies import manifests

from accord.contracts import ContractError, digest, render_sdk
from accord.contracts.export import package_name, runtime_api

CONTRACT: dict[str, Any] = {
    "format": "trellis.contract.v1",
    "id": "things@v2",
    "displayName": "Things",
    "description": "Has things.",
    "kind": "service",
    "schemas": {
        "Thing": {
            "type": "object",
            "properties": {
                "id": {"type": "string"},
                "class": {"enum": ["a", "b", None]},
                "parts": {
                    "type": "array",
                    "items": {"type": "object", "properties": {"size": {"type": "integer"}}},
                },
            },
            "required": ["id"],
        },
        "Both": {
            "allOf": [
                {"properties": {"a": {"type": "string"}}, "required": ["a"]},
                {"properties": {"b": {"anyOf": [{"type": "number"}, {"type": "null"}]}}},
            ]
        },
    },
    "rpc": {
        "Thing.Get": {
            "version": "v1",
            "subject": "rpc.v1.Thing.Get",
            "input": {"schema": "Both"},
            "output": {"schema": "Thing"},
            "errors": [{"type": "Gone"}],
            "docs": {"summary": "Get a thing.", "markdown": "By name:\n\n    get(name)"},
        }
    },
    "operations": {
        "Thing.Make": {
            "version": "v1",
            "subject": "operations.v1.Thing.Make",
            "input": {"schema": "Both"},
            "output": {"schema": "Thing"},
            "signals": {"goOn": {"input": {"schema": "Both"}}},
            "cancel": True,
            "errors": [{"type": "Gone"}],
        }
    },
    "events": {
        "Thing.Made": {
            "version": "v1",
            "subject": "events.v1.Thing.Made.{/id}",
            "params": ["/id"],
            "event": {"schema": "Thing"},
        }
    },
    "feeds": {
        "Thing.All": {
            "version": "v1",
            "subject": "feeds.v1.Thing.All",
            "input": {"schema": "Both"},
            "event": {"schema": "Thing"},
        }
    },
    "jobs": {"make": {"payload": {"schema": "Both"}}},
    "eventConsumers": {"own": {"self": ["Thing.Made"]}},
    "state": {"shelves": {"kind": "map", "schema": {"schema": "Thing"}}},
    "resources": {
        "store": {"files": {"purpose": "Keep."}},
        "kv": {"spare": {"purpose": "Spare things.", "schema": {"schema": "Thing"}}},
    },
    "errors": {"Gone": {"type": "Gone", "schema": {"schema": "Thing"}}},
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The package of the contract, imported."""
    for path, text in render_sdk(CONTRACT).items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("things_v2")
    for name in [name for name in sys.modules if name.partition(".")[0] == "things_v2"]:
        del sys.modules[name]


class Wire:
    """Takes note of everything, and answers with it."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    async def call(self, *arguments: Any) -> Any:
        self.calls.append(("call", *arguments))
        return {"id": "1"}

    async def start(self, *arguments: Any) -> Any:
        self.calls.append(("start", *arguments))
        return self

    async def signal(self, *arguments: Any) -> None:
        self.calls.append(("signal", *arguments))

    async def publish(self, *arguments: Any) -> None:
        self.calls.append(("publish", *arguments))

    async def subscribe(self, *arguments: Any) -> AsyncIterator[Any]:
        self.calls.append(("subscribe", *arguments))
        yield {"id": "2"}

    async def feed(self, *arguments: Any) -> AsyncIterator[Any]:
        self.calls.append(("feed", *arguments))
        yield {"id": "3"}


async def test_a_client_reaches_the_subjects_of_the_contract(package: ModuleType) -> None:
    wire = Wire()
    client = package.Client(wire)
    assert await client.call_thing_get({"a": "x"}) == {"id": "1"}
    run = await client.start_thing_make({"a": "x"})
    await client.signal_thing_make__go_on(run, {"a": "y"})
    await client.publish_thing_made({"id": "1"})
    assert [event async for event in client.subscribe_thing_made()] == [{"id": "2"}]
    assert [event async for event in client.feed_thing_all({"a": "x"})] == [{"id": "3"}]
    assert wire.calls == [
        ("call", "rpc.v1.Thing.Get", {"a": "x"}),
        ("start", "operations.v1.Thing.Make", {"a": "x"}),
        ("signal", "goOn", {"a": "y"}),
        ("publish", "events.v1.Thing.Made.{/id}", {"id": "1"}),
        ("subscribe", "events.v1.Thing.Made.*"),
        ("feed", "feeds.v1.Thing.All", {"a": "x"}),
    ]


class Refusal(Exception):  # noqa: N818 - as a transport may name it
    """What a transport raises for an error that came."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.body = {"id": "1", "type": kind, "message": f"it is {kind}"}


async def test_declared_errors_are_classes_and_others_come_as_they_are(
    package: ModuleType,
) -> None:
    class Refusing(Wire):
        async def call(self, *_arguments: Any) -> Any:
            raise self.refusal

        start = call
        refusal = Refusal("Gone")

    gone: Any = importlib.import_module("things_v2.errors").Gone
    wire = Refusing()
    client = package.Client(wire)
    for ask in (client.call_thing_get, client.start_thing_make):
        with pytest.raises(gone, match="it is Gone") as caught:
            await ask({"a": "x"})
        assert caught.value.body["id"] == "1"
        assert caught.value.__cause__ is wire.refusal
    wire.refusal = Refusal("Other")
    with pytest.raises(Refusal):
        await client.call_thing_get({"a": "x"})


class Ended:
    """A run that has ended."""

    def __init__(self, **snapshot: Any) -> None:
        self.snapshot = {"revision": 2, **snapshot}

    async def wait(self) -> Any:
        return self.snapshot


async def test_a_run_gives_its_output_or_raises_its_error(package: ModuleType) -> None:
    gone: Any = importlib.import_module("things_v2.errors").Gone
    ended: Any = importlib.import_module("things_v2.transport").OperationError
    result = package.Client(Wire()).result_thing_make
    assert await result(Ended(state="completed", output={"id": "1"})) == {"id": "1"}
    with pytest.raises(gone, match="it is Gone"):
        await result(Ended(state="failed", error=Refusal("Gone").body))
    with pytest.raises(ended, match="Other: it is Other"):
        await result(Ended(state="failed", error=Refusal("Other").body))
    with pytest.raises(ended, match="was cancelled"):
        await result(Ended(state="cancelled"))


def test_jobs_buckets_and_state_are_members(package: ModuleType) -> None:
    class Session:
        def __getattr__(self, verb: str) -> Any:
            return lambda *arguments: (verb, *arguments)

    resources = package.Resources(Session())
    assert resources.job_make() == ("jobs", "make")
    assert resources.kv_spare() == ("kv", "spare")
    assert resources.state_shelves({"v1": dict}) == ("state_map", "shelves", {"v1": dict})


def test_what_the_author_wrote_is_kept_whole(package: ModuleType) -> None:
    told = "Get a thing.\n\nBy name:\n\n    get(name)"
    assert inspect.getdoc(package.Client.call_thing_get) == told
    assert inspect.getdoc(package.Service.call_thing_get) == told


class Host:
    """Takes note of what a service serves."""

    def __init__(self) -> None:
        self.served: dict[tuple[str, str], Any] = {}

    def __getattr__(self, name: str) -> Any:
        async def serve(key: str, handler: Any, **others: Any) -> None:
            self.served[name, key] = (handler.__name__, others)

        return serve


async def test_a_service_is_bound_to_everything_that_it_owns(package: ModuleType) -> None:
    abstract = package.Service.__abstractmethods__
    answers = {name: (lambda *_: None) for name in abstract}
    for name, answer in answers.items():
        answer.__name__ = name
    host = Host()
    await package.serve(type("Mine", (package.Service,), answers)(), host)
    others = host.served["serve_operation", "operations.v1.Thing.Make"][1]
    assert others["cancel"].__name__ == "cancel_thing_make"
    assert others["signals"]["goOn"].__name__ == "signal_thing_make__go_on"
    assert {key: name for key, (name, _) in host.served.items()} == {
        ("serve_call", "rpc.v1.Thing.Get"): "call_thing_get",
        ("serve_operation", "operations.v1.Thing.Make"): "run_thing_make",
        ("serve_feed", "feeds.v1.Thing.All"): "feed_thing_all",
        ("serve_job", "make"): "job_make",
        ("serve_events", "own"): "consume_own",
    }


def test_a_service_that_lacks_a_method_cannot_be_made(package: ModuleType) -> None:
    with pytest.raises(TypeError, match="call_thing_get"):
        type("Lazy", (package.Service,), {})()


def test_a_package_knows_its_contract(package: ModuleType) -> None:
    facts = importlib.import_module("things_v2.contract")
    assert facts.ID == "things@v2"
    assert facts.DIGEST == digest(CONTRACT) == digest(facts.manifest())
    assert (facts.STORES, facts.KV) == (("files",), ("spare",))


def test_types_say_what_schemas_say(package: ModuleType) -> None:
    types = importlib.import_module("things_v2.types")
    assert types.Thing.__required_keys__ == {"id"}
    assert types.Thing.__optional_keys__ == {"class", "parts"}
    assert types.Both.__required_keys__ == {"a"}
    text = render_sdk(CONTRACT)["things_v2/types.py"]
    assert '"class": NotRequired[Literal["a", "b", None]],' in text
    assert "    b: NotRequired[float | None]\n" in text
    assert "class ThingPartsItem(TypedDict):\n    size: NotRequired[int]\n" in text


@pytest.mark.parametrize(
    "names",
    [
        ("list", "str", "int", "float", "bool", "dict"),
        ("__private", "_x", "plain"),
        ("class", "None", "match"),
        ("ﬁ", "e\u0301", "ä", "", " ", "Any", "Thing"),
    ],
)
def test_members_of_any_name_keep_it(names: tuple[str, ...]) -> None:
    inner = {"type": "array", "items": {"type": "integer"}}
    thing = {"type": "object", "properties": dict.fromkeys(names, inner), "required": ["plain"]}
    text = render_sdk({**CONTRACT, "schemas": {**CONTRACT["schemas"], "Odd": thing}})
    scope: dict[str, Any] = {"__name__": "types"}
    exec(text["things_v2/types.py"], scope)
    assert scope["Odd"].__required_keys__ == {"plain"}
    assert scope["Odd"].__optional_keys__ == set(names) - {"plain"}
    # What comes after a member of the name of a type still means the type.
    assert "class Odd" not in text["things_v2/types.py"] or "list" not in names


@given(manifests())
@settings(max_examples=25)
def test_a_package_does_not_depend_on_the_order_of_members(manifest: dict[str, Any]) -> None:
    turned = json.loads(json.dumps(manifest), object_pairs_hook=lambda pairs: dict(pairs[::-1]))
    assert render_sdk(turned) == render_sdk(manifest)


def test_ten_thousand_names_of_one_spelling_are_kept_apart() -> None:
    surface = CONTRACT["rpc"]["Thing.Get"]
    many = {"x" * 40 + str(n): {**surface, "subject": f"rpc.{n}"} for n in range(10_000)}
    text = render_sdk({**CONTRACT, "rpc": many})["things_v2/client.py"]
    assert len(set(text.split("async def call_")[1:])) == 10_000
    assert f"call_{'x' * 36}_10000(\n" in text


def test_a_schema_as_deep_as_a_manifest_may_be_has_a_type() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for keyword in ("allOf", "anyOf", "items", "properties") * 12:
        inner = [schema] if keyword.endswith("Of") else schema
        schema = {keyword: {"inner": schema} if keyword == "properties" else inner}
    assert render_sdk({**CONTRACT, "schemas": {**CONTRACT["schemas"], "Deep": schema}})


@pytest.mark.parametrize("value", [None, 5, [], {}, {"id": "x"}])
def test_what_is_no_contract_is_refused(value: Any) -> None:
    with pytest.raises(ContractError) as caught:
        render_sdk(value)
    assert caught.value.findings


@pytest.mark.parametrize(
    ("identity", "name"),
    [
        ("graph@v1", "graph_v1"),
        ("trellis.auth@v12", "trellis_auth_v12"),
        ("7-up@v1", "sdk_7_up_v1"),
    ],
)
def test_a_package_is_named_after_its_contract(identity: str, name: str) -> None:
    assert package_name({"id": identity}) == name


def test_contracts_merge_into_one_api_by_their_logical_names() -> None:
    other = {**CONTRACT, "id": "others@v1"}
    other.update({section: {} for section in ("rpc", "operations", "events", "feeds")})
    other["eventConsumers"] = {}
    other["rpc"] = {"Other.Get": {**CONTRACT["rpc"]["Thing.Get"], "subject": "rpc.v1.Other.Get"}}
    merged = runtime_api([CONTRACT, other])
    assert {name: one["contract"] for name, one in merged["rpc"].items()} == {
        "Thing.Get": "things@v2",
        "Other.Get": "others@v1",
    }
    assert merged["rpc"]["Other.Get"]["schemas"] == CONTRACT["schemas"]


def test_contracts_with_a_surface_of_the_same_name_do_not_merge() -> None:
    with pytest.raises(ContractError, match="do not merge") as caught:
        runtime_api([CONTRACT, {**CONTRACT, "id": "others@v1"}])
    assert {finding.pointer for finding in caught.value.findings} == {
        "/rpc/Thing.Get",
        "/operations/Thing.Make",
        "/events/Thing.Made",
        "/feeds/Thing.All",
    }
