"""`whatif contract` finds exactly the calls that a proposed contract would have failed."""

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.fakes.tables import Line, build, silver

from accord.contracts import ContractError, compare, digest
from accord.kernel import canonical
from accord.pipeline.errors import PipelineError
from accord.pipeline.rules import streams
from accord.pipeline.tables import GivenTables, GoldTable, contracts_history, contracts_manifests
from accord.pipeline.whatif import CallOutcome, ProposedContract, whatif_contract

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T0 = 1_767_225_600_000

CONTRACT: dict[str, Any] = {
    "format": "trellis.contract.v1",
    "id": "billing@v1",
    "displayName": "Billing",
    "description": "Invoices.",
    "kind": "service",
    "schemas": {
        "Ask": {
            "type": "object",
            "properties": {"account": {"type": "string"}, "lines": {"type": "array"}},
        },
        "Answer": {"type": "object"},
    },
    "rpc": {
        name: {
            "version": "v1",
            "subject": f"rpc.v1.{name}",
            "input": {"schema": "Ask"},
            "output": {"schema": "Answer"},
        }
        for name in ("Billing.Pay", "Billing.List")
    },
}
STRICTER = copy.deepcopy(CONTRACT)
STRICTER["schemas"]["Ask"]["properties"]["lines"] = {
    "type": "array",
    "items": {"type": "object", "required": ["amount"]},
}
del STRICTER["rpc"]["Billing.List"]
OLD = digest(CONTRACT)


def call(payload: Any, caller: str, **more: Any) -> dict[str, Any]:
    return {
        "at": "2026-01-02T10:00:00Z",
        "contract_id": "billing@v1",
        "digest": OLD,
        "kind": "rpc",
        "surface": "Billing.Pay",
        "part": "input",
        "service": "billing-eu",
        "caller": {"deployment": caller, "contract_id": "shop@v1", "digest": None},
        "request_id": "r",
        "outcome": "ok",
        "error": None,
        "ms": 12,
        "payload": payload,
        **more,
    }


GOOD = {"account": "a", "lines": [{"amount": 1}]}
BAD = {"account": "a", "lines": [{"amount": 1}, {"sum": 2}]}


def proposal(manifest: dict[str, Any]) -> ProposedContract:
    return ProposedContract(canonical.encode(manifest), {OLD: canonical.encode(CONTRACT)})


def test_a_payload_fails_where_the_proposed_schema_says_so_and_no_value_is_told() -> None:
    judged = proposal(STRICTER).judge(call(BAD, "shop"))
    assert (judged.fate, judged.rule, judged.pointer) == (
        CallOutcome.FAILED,
        "schema.required",
        "/lines/*",
    )
    assert proposal(STRICTER).judge(call(GOOD, "shop")).fate is CallOutcome.KEPT


def test_what_a_proposal_does_not_change_is_not_judged() -> None:
    described = copy.deepcopy(CONTRACT)
    described["schemas"]["Ask"]["description"] = "Another word for it."
    assert proposal(described).judge(call(BAD, "shop")).fate is CallOutcome.UNTOUCHED
    assert proposal(STRICTER).judge(call({}, "shop", part="output")).fate is CallOutcome.UNTOUCHED


def test_a_surface_that_is_gone_fails_every_call_of_it_recorded_or_not() -> None:
    gone = call(GOOD, "shop", surface="Billing.List")
    del gone["payload"]
    judged = proposal(STRICTER).judge(gone)
    assert (judged.fate, judged.rule) == (CallOutcome.GONE, "surface.gone")


def test_a_call_without_its_payload_is_counted_and_not_guessed() -> None:
    withheld = call(None, "shop")
    del withheld["payload"]
    assert proposal(STRICTER).judge(withheld).fate is CallOutcome.UNRECORDED


@pytest.fixture(scope="module")
def tables(spark: "SparkSession") -> GivenTables:
    """Every tenth call of a shop, and all of a till, break the proposal; a list is asked twice."""
    withheld = call(None, "shop")
    del withheld["payload"]
    calls = [
        *(call(BAD if n % 10 == 0 else GOOD, "shop") for n in range(40)),
        *(call(BAD, "till") for _ in range(3)),
        *(call(GOOD, "desk") for _ in range(5)),
        *(call({"any": "thing"}, "desk", surface="Billing.List") for _ in range(2)),
        *(call({}, "shop", part="output") for _ in range(7)),
        withheld,
        call(BAD, "elsewhere", contract_id="other@v1"),
    ]
    step = {
        "kind": "presented",
        "at": "2026-01-01T00:00:00Z",
        "deployment": "billing-eu",
        "contract_id": "billing@v1",
        "digest": OLD,
        "by": "ops",
        "classification": None,
        "previous": None,
        "manifest": CONTRACT,
    }
    history = [step, {**step, "kind": "accepted", "manifest": None}]
    given = GivenTables(
        spark,
        {
            streams.CONTRACTS_CALLS: silver(
                spark,
                streams.CONTRACTS_CALLS,
                [Line(f"c{n:02}", T0 + n, body) for n, body in enumerate(calls)],
            ),
            streams.CONTRACTS_HISTORY: silver(
                spark,
                streams.CONTRACTS_HISTORY,
                [Line(f"h{n}", T0 + n, body) for n, body in enumerate(history)],
            ),
        },
    )
    return build(
        given,
        [
            GoldTable("contracts_history", contracts_history),
            GoldTable("contracts_manifests", contracts_manifests),
        ],
    )


def test_it_finds_exactly_the_planted_payloads_and_names_their_callers(tables: GivenTables) -> None:
    found = whatif_contract(tables, STRICTER)
    assert (found.calls, found.replayed, found.failing, found.callers) == (58, 50, 9, 3)
    assert {(each.caller, each.surface, each.rule): each.calls for each in found.failures} == {
        ("shop", "Billing.Pay", "schema.required"): 4,
        ("till", "Billing.Pay", "schema.required"): 3,
        ("desk", "Billing.List", "surface.gone"): 2,
    }
    [pay] = [s for s in found.surfaces if (s.surface, s.part) == ("Billing.Pay", "input")]
    assert (pay.kept, pay.failed, pay.unrecorded) == (41, 7, 1)
    first, last = found.failures[0].samples
    assert (first.id, last.id) == ("c00", "c30")
    assert json.loads(first.payload or "") == BAD
    assert {each.writer for each in found.failures} == {"caller"}
    assert found.against == OLD
    assert found.static == compare(CONTRACT, STRICTER)
    told = found.to_dict()
    assert told == json.loads(json.dumps(told))
    text = found.text()
    assert "9 calls of 50 that it touches would have failed (18.0 %), of 3 callers." in text
    assert "not compatible (replacement)" in text


def test_a_contract_that_nobody_knows_has_no_history(tables: GivenTables) -> None:
    found = whatif_contract(tables, {**CONTRACT, "id": "unheard@v1"})
    assert (found.calls, found.static, found.failures) == (0, None, ())
    assert "history has nothing to say" in found.text()


def test_a_proposal_that_is_no_contract_is_refused(tables: GivenTables) -> None:
    with pytest.raises(ContractError, match="not valid"):
        whatif_contract(tables, {"id": "billing@v1"})
    with pytest.raises(PipelineError, match="ever presented"):
        whatif_contract(tables, STRICTER, against="nothing")
