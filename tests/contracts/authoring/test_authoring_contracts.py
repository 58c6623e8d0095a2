"""What a contract written in Python becomes."""

import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from accord.contracts import ContractError, digest, validate
from accord.contracts.authoring import Contract, Docs


@dataclass
class Request:
    id: str


@dataclass
class Thing:
    id: str
    size: int = 0


@dataclass
class Problem:
    reason: str


DECLARATIONS: tuple[Callable[[Contract], None], ...] = (
    lambda c: c.capability("read", "Read", "See things.", consequence="Things are seen."),
    lambda c: c.capability("write", "Write", "Change things."),
    lambda c: c.error("Missing", Problem),
    lambda c: c.error("Busy"),
    lambda c: c.schema("Anything", True, export=True),
    lambda c: c.uses("billing", "billing@v1", rpc={"B", "A"}, subscribe=["Paid"], optional=True),
    lambda c: c.rpc(
        "Thing.Get", Request, Thing, call=["read", "platform.x"], errors={"Missing", "Busy"}
    ),
    lambda c: c.rpc("Thing.Fetch", Request, "Anything", receives=True, version="v2"),
    lambda c: c.operation(
        "Thing.Make",
        Request,
        Thing,
        progress=Thing,
        signals={"hurry": Request, "stop": "Anything"},
        call=["write"],
        cancel=[],
        control=["write"],
        transfer={"store": "files", "key": "/id", "max_bytes": 10},
    ),
    lambda c: c.event("Thing.Made", Thing, params=["/id", "/size"], publish=["write"]),
    lambda c: c.event("Thing.Gone", Thing, subject="events.gone.{/id}", subscribe=["read"]),
    lambda c: c.feed("Thing.All", Request, Thing, subscribe=["read"], docs=Docs("# All", "All.")),
    lambda c: c.job(
        "make",
        Request,
        Thing,
        max_deliver=3,
        backoff_ms=(1, 2),
        key_concurrency={"key": ("make", "/id"), "heartbeat_ttl_ms": 5},
        queue={"max_queued_per_key": 1, "when_full": "coalesce"},
    ),
    lambda c: c.consumer("paid", uses={"billing": ["Paid"]}, own={"Thing.Made"}, ack_wait_ms=9),
    lambda c: c.state("last_seen", Thing, kind="map", version="v2", accepts={"v1": Request}),
    lambda c: c.kv("some_cache", Thing, "Remember things.", history=2, ttl_ms=0),
    lambda c: c.store("files", "Keep files.", required=False, max_object_bytes=5),
)


def written(order: list[int] | None = None) -> Contract:
    contract = Contract(
        "things@v3", display_name="Things", description="Has things.", docs=Docs("Long.")
    )
    for number in order or range(len(DECLARATIONS)):
        DECLARATIONS[number](contract)
    return contract


def empty(identity: str = "things@v3", **arguments: Any) -> Contract:
    return Contract(identity, display_name="Things", description="", **arguments)


def test_everything_that_can_be_declared_makes_a_valid_manifest() -> None:
    manifest = written().manifest()
    assert validate(manifest) == []
    assert manifest["operations"]["Thing.Make"] == {
        "version": "v1",
        "subject": "operations.v1.Thing.Make",
        "input": {"schema": "Request"},
        "progress": {"schema": "Thing"},
        "output": {"schema": "Thing"},
        "capabilities": {"call": ["things::write"], "cancel": [], "control": ["things::write"]},
        "signals": {
            "hurry": {"input": {"schema": "Request"}},
            "stop": {"input": {"schema": "Anything"}},
        },
        "cancel": True,
        "transfer": {"direction": "send", "store": "files", "key": "/id", "maxBytes": 10},
    }
    assert manifest["jobs"]["make"] == {
        "payload": {"schema": "Request"},
        "result": {"schema": "Thing"},
        "maxDeliver": 3,
        "backoffMs": [1, 2],
        "keyConcurrency": {"key": ["make", "/id"], "heartbeatTtlMs": 5},
        "queue": {"maxQueuedPerKey": 1, "whenFull": "coalesce"},
    }
    assert manifest["events"]["Thing.Made"]["subject"] == "events.v1.Thing.Made.{/id}.{/size}"
    assert manifest["events"]["Thing.Gone"]["params"] == ["/id"]
    assert manifest["rpc"]["Thing.Fetch"]["subject"] == "rpc.v2.Thing.Fetch"
    assert manifest["rpc"]["Thing.Fetch"]["transfer"] == {"direction": "receive"}
    assert manifest["state"]["last_seen"]["acceptedVersions"] == {"v1": {"schema": "Request"}}
    assert manifest["resources"]["kv"]["some_cache"]["ttlMs"] == 0
    assert manifest["exports"] == {"schemas": ["Anything"]}
    assert manifest["uses"]["optional"]["billing"] == {
        "contract": "billing@v1",
        "rpc": {"call": ["A", "B"]},
        "events": {"subscribe": ["Paid"]},
    }


def test_the_bytes_are_the_same_in_whatever_order_things_are_declared() -> None:
    first = written().to_json()
    order = list(range(len(DECLARATIONS)))
    for seed in range(10):
        random.Random(seed).shuffle(order)
        assert written(order).to_json() == first


def test_the_bytes_are_the_same_in_every_process() -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import test_authoring_contracts as t;"
        "sys.stdout.buffer.write(t.written().to_json())"
    )
    command = [sys.executable, "-c", program, str(Path(__file__).parent)]
    answers = {
        subprocess.run(
            command,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    }
    assert answers == {written().to_json()}


def test_only_declared_local_capabilities_get_global_keys() -> None:
    manifest = written().manifest()
    assert set(manifest["capabilities"]) == {"things::read", "things::write"}
    assert manifest["rpc"]["Thing.Get"]["capabilities"] == {"call": ["platform.x", "things::read"]}


def test_a_capability_may_be_written_by_its_global_key_too() -> None:
    contract = empty()
    contract.capability("things::read", "Read", "See.")
    contract.rpc("Get", Request, Thing, call=["things::read"])
    manifest = contract.manifest()
    assert list(manifest["capabilities"]) == ["things::read"]
    assert manifest["rpc"]["Get"]["capabilities"] == {"call": ["things::read"]}


def test_baseline_uses_are_added_beside_and_into_what_the_author_wrote() -> None:
    contract = empty(kind="device")
    contract.uses("health", "trellis.health@v1", subscribe=["Health.Alarm"], optional=True)
    uses = contract.manifest()["uses"]
    assert uses["optional"]["health"]["events"] == {
        "publish": ["Health.Heartbeat"],
        "subscribe": ["Health.Alarm"],
    }
    assert set(uses["required"]) == {"auth"}


def test_an_alias_of_the_baseline_is_for_its_contract_only() -> None:
    contract = empty()
    contract.uses("health", "mine@v1", rpc=["X"])
    with pytest.raises(ContractError, match=r"kept for trellis\.health@v1"):
        contract.manifest()


def test_documentation_does_not_change_the_digest() -> None:
    plain, told = empty(), empty(docs=Docs("# Much", "Much."))
    plain.event("Made", Thing)
    told.event("Made", Thing, docs=Docs("About it."))
    assert digest(plain.manifest()) == digest(told.manifest())


def test_what_is_not_valid_is_refused_with_its_findings() -> None:
    contract = empty()
    contract.rpc("Get", "Nowhere", Thing)
    contract.event("Made", Thing, params=["/nothing"])
    with pytest.raises(ContractError) as caught:
        contract.to_json()
    assert {finding.rule for finding in caught.value.findings} == {
        "reference.unknown-schema",
        "event.template-pointer",
    }


def test_a_bad_id_is_a_finding() -> None:
    with pytest.raises(ContractError) as caught:
        empty("no version").manifest()
    assert [finding.pointer for finding in caught.value.findings] == ["/id"]


def test_one_name_is_one_thing() -> None:
    contract = empty()
    contract.rpc("Get", Request, Thing)
    with pytest.raises(ContractError, match="'Get' is declared twice"):
        contract.rpc("Get", Request, Thing)
    other = type("Thing", (Problem,), {})
    with pytest.raises(ContractError, match="two types go by the name 'Thing'"):
        contract.rpc("Put", Request, other)


@pytest.mark.parametrize("payload", [list[int], int, None, 5, {"type": "object"}])
def test_a_payload_without_a_name_needs_one(payload: Any) -> None:
    with pytest.raises(ContractError, match="no name of its own"):
        empty().rpc("Get", payload, Thing)


def test_a_named_type_is_referred_to_by_its_name() -> None:
    contract = empty()
    contract.schema("Numbers", list[int])
    contract.rpc("Sum", "Numbers", Thing)
    schemas = contract.manifest()["schemas"]
    assert schemas["Numbers"] == {"type": "array", "items": {"type": "integer"}}
