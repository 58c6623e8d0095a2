"""Gold contracts: the catalog over time, usage, shapes, and what fits what."""

import copy
from datetime import date
from typing import TYPE_CHECKING, Any

import pytest
from tests.fakes.tables import Line, build, silver

from accord.contracts import compare, digest
from accord.pipeline.rules import streams
from accord.pipeline.tables import CONTRACT_TABLES, GivenTables

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T0 = 1_767_225_600_000

FIRST: dict[str, Any] = {
    "format": "trellis.contract.v1",
    "id": "billing@v1",
    "displayName": "Billing",
    "description": "Invoices.",
    "kind": "service",
    "schemas": {
        "Ask": {
            "type": "object",
            "properties": {"account": {"type": "string"}, "limit": {"type": "integer"}},
            "required": ["account"],
        },
        "Totals": {"type": "object", "additionalProperties": {"type": "number"}},
    },
    "rpc": {
        "Billing.Totals": {
            "version": "v1",
            "subject": "rpc.v1.Billing.Totals",
            "input": {"schema": "Ask"},
            "output": {"schema": "Totals"},
        }
    },
}
SECOND = copy.deepcopy(FIRST)
SECOND["schemas"]["Ask"]["properties"]["since"] = {"type": "string"}
THIRD = copy.deepcopy(FIRST)
THIRD["schemas"]["Ask"]["required"] = ["account", "limit"]
DIGESTS = [digest(each) for each in (FIRST, SECOND, THIRD)]


def step(kind: str, at: str, number: int, **more: Any) -> dict[str, Any]:
    manifest = [FIRST, SECOND, THIRD][number] if kind == "presented" else None
    return {
        "kind": kind,
        "at": f"2026-01-0{at}T00:00:00Z",
        "deployment": "billing-eu",
        "contract_id": "billing@v1",
        "digest": DIGESTS[number],
        "by": "ops",
        "classification": None,
        "previous": None,
        "manifest": manifest,
        **more,
    }


def call(part: str, payload: Any, *, caller: str = "shop", **more: Any) -> dict[str, Any]:
    return {
        "at": "2026-01-02T10:00:00.500Z",
        "contract_id": "billing@v1",
        "digest": DIGESTS[0],
        "kind": "rpc",
        "surface": "Billing.Totals",
        "part": part,
        "service": "billing-eu",
        "caller": {"deployment": caller, "contract_id": None, "digest": None},
        "request_id": "r",
        "outcome": "ok",
        "error": None,
        "ms": 12,
        "payload": payload,
        **more,
    }


WITHHELD = call("input", None, at="2026-99-99T10:00:00Z")
del WITHHELD["payload"]

HISTORY = [
    step("presented", "1", 0),
    step("offered", "1", 0),
    step("offered", "2", 0),
    step("presented", "3", 1),
    step("presented", "3", 1, deployment="billing-us"),
    step("offered", "4", 1),
    step("expired", "4", 0),
    step("withdrawn", "5", 1),
    step("presented", "6", 2),
    step("offered", "7", 2),
]
CALLS = [
    call("input", {"account": "acct-4711", "secret-map-key": {"account": 3}}),
    call("input", {"account": "acct-0815", "another-key": {"account": 9}}),
    call("output", {"acct-4711": 3.5, "acct-0815": 2.5}),
    call("input", {"account": "x", "limit": 3}, caller="app", outcome="error", error="Late", ms=99),
    WITHHELD,
]


@pytest.fixture(scope="module")
def gold(spark: "SparkSession") -> dict[str, list[dict[str, Any]]]:
    given = GivenTables(
        spark,
        {
            stream: silver(spark, stream, [Line(f"{n}", T0 + n, body) for n, body in enumerate(of)])
            for stream, of in (
                (streams.CONTRACTS_HISTORY, HISTORY),
                (streams.CONTRACTS_CALLS, CALLS),
            )
        },
    )
    built = build(given, CONTRACT_TABLES)
    return {
        table.name: [row.asDict() for row in built.gold(table.name).collect()]
        for table in CONTRACT_TABLES
    }


def test_the_catalog_says_what_was_offered_from_when_until_when_and_why_it_ended(
    gold: dict[str, list[dict[str, Any]]],
) -> None:
    day = 86_400_000
    offers = sorted(
        (row["since"], row["until"], row["digest"], row["ended_by"])
        for row in gold["contracts_catalog"]
        if row["until"] is not None
    )
    assert offers == [
        (T0, T0 + 3 * day, DIGESTS[0], "expired"),
        (T0 + 3 * day, T0 + 4 * day, DIGESTS[1], "withdrawn"),
    ]
    [standing] = [row for row in gold["contracts_catalog"] if row["until"] is None]
    assert (standing["digest"], standing["since"]) == (DIGESTS[2], T0 + 6 * day)


def test_every_contract_is_kept_once_however_often_it_is_presented(
    gold: dict[str, list[dict[str, Any]]],
) -> None:
    assert sorted(row["digest"] for row in gold["contracts_manifests"]) == sorted(DIGESTS)


def test_usage_names_who_used_which_surface_and_with_what_success(
    gold: dict[str, list[dict[str, Any]]],
) -> None:
    usage = {
        (row["day"], row["caller"], row["part"]): (row["calls"], row["errors"], row["p50_ms"])
        for row in gold["contracts_usage"]
    }
    assert usage == {
        (date(2026, 1, 2), "shop", "input"): (2, 0, 12.0),
        (date(2026, 1, 2), "shop", "output"): (1, 0, 12.0),
        (date(2026, 1, 2), "app", "input"): (1, 1, 99.0),
        (None, "shop", "input"): (1, 0, 12.0),
    }


def test_shapes_hold_structure_and_not_one_value_nor_a_key_that_is_one(
    gold: dict[str, list[dict[str, Any]]],
) -> None:
    shapes = {(row["part"], row["shape"]): row["seen"] for row in gold["contracts_shapes"]}
    assert shapes == {
        ("input", '{"*":[{"account":"integer"}],"account":"string"}'): 2,
        ("input", '{"account":"string","limit":"integer"}'): 1,
        ("output", '{"*":["number"]}'): 1,
    }


def test_the_matrix_says_what_the_comparison_itself_says(
    gold: dict[str, list[dict[str, Any]]],
) -> None:
    rows = gold["contracts_compatibility"]
    assert len(rows) == 3 * 2 * 2
    manifests = dict(zip(DIGESTS, (FIRST, SECOND, THIRD), strict=True))
    for row in rows:
        report = compare(manifests[row["old"]], manifests[row["new"]], row["relation"])
        assert (row["compatible"], row["classification"]) == (
            report.compatible,
            report.classification,
        )
        breaking = sum(each.category == "breaking" for each in report.findings)
        assert row["breaking"] == breaking
    verdicts = {
        (row["old"], row["new"]): row["compatible"]
        for row in rows
        if row["relation"] == "replacement"
    }
    assert verdicts[DIGESTS[2], DIGESTS[0]]
    assert not verdicts[DIGESTS[0], DIGESTS[2]]
