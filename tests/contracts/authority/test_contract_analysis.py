"""What an administrator sees of a contract (specification, section 13)."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from tests.fakes.strategies import manifests

from accord.contracts import ContractError, analyze, digest
from accord.contracts.analysis import OWNER
from accord.kernel import canonical

Make = Callable[..., dict[str, Any]]


def test_the_summary_counts_everything(billing: Make) -> None:
    analyzed = analyze(billing())
    assert (analyzed["id"], analyzed["digest"]) == ("billing@v1", digest(billing()))
    assert analyzed["analysisSummary"] == {
        "rpcMethods": 2,
        "operations": 1,
        "operationControls": 5,
        "events": 1,
        "feeds": 1,
        "eventConsumers": 1,
        "natsPublish": len(analyzed["analysis"]["nats"]["publish"]),
        "natsSubscribe": len(analyzed["analysis"]["nats"]["subscribe"]),
        "kvResources": 1,
        "storeResources": 1,
        "jobsQueues": 2,
    }


def test_an_operation_shows_every_list(billing: Make) -> None:
    (operation,) = analyze(billing())["analysis"]["operations"]["operations"]
    assert operation == {
        "key": "Refund",
        "subject": "operations.v1.Refund",
        "wildcardSubject": "operations.v1.Refund",
        "controlSubject": "operations.v1.Refund.control",
        "wildcardControlSubject": "operations.v1.Refund.control",
        "callCapabilities": ["billing::refund"],
        "observeCapabilities": ["billing::read"],
        "cancelCapabilities": ["billing::cancel"],
        "controlCapabilities": ["billing::control"],
        "cancel": True,
        "signals": ["approve"],
        "transfer": "send",
    }


def test_control_actions_show_who_may_take_them(billing: Make) -> None:
    control = analyze(billing())["analysis"]["operations"]["control"]
    assert [(one["action"], one["requiredCapabilities"]) for one in control] == [
        ("get", ["billing::read"]),
        ("wait", ["billing::read"]),
        ("watch", ["billing::read"]),
        ("cancel", ["billing::cancel"]),
        ("signal", ["billing::control"]),
    ]
    assert {one["subject"] for one in control} == {"operations.v1.Refund.control"}
    assert {one["wildcardSubject"] for one in control} == {"operations.v1.Refund.control"}


def test_a_cancel_list_of_nobody_differs_from_one_of_everybody(billing: Make) -> None:
    contract = billing()
    lists = contract["operations"]["Refund"]["capabilities"]

    def shown() -> tuple[Any, bool]:
        operations = analyze(contract)["analysis"]["operations"]
        actions = {one["action"] for one in operations["control"]}
        return operations["operations"][0]["cancelCapabilities"], "cancel" in actions

    lists["cancel"] = []
    assert shown() == ([], True)
    del lists["cancel"]
    assert shown() == (None, False)


def test_events_and_feeds_are_shown(billing: Make) -> None:
    analysis = analyze(billing())["analysis"]
    assert analysis["events"]["events"] == [
        {
            "key": "Paid",
            "subject": "events.v1.Paid.{/id}",
            "wildcardSubject": "events.v1.Paid.*",
            "publishCapabilities": ["billing::write"],
            "subscribeCapabilities": ["billing::read"],
        }
    ]
    assert analysis["feeds"]["feeds"] == [
        {
            "key": "Balance",
            "subject": "feeds.v1.Balance",
            "wildcardSubject": "feeds.v1.Balance",
            "subscribeCapabilities": ["billing::read"],
        }
    ]


def test_resources_and_jobs_are_shown_with_their_defaults(billing: Make) -> None:
    resources = analyze(billing())["analysis"]["resources"]
    assert resources["kv"][0] | {"schema": 0} == {
        "alias": "activity",
        "purpose": "Activity.",
        "required": True,
        "history": 1,
        "ttlMs": 0,
        "schema": 0,
    }
    assert resources["jobs"][0]["maxDeliver"] == 5
    assert [job["alias"] for job in resources["jobs"]] == ["settle", "sync"]


def test_permissions_are_shown_for_callers_and_for_the_service(billing: Make) -> None:
    nats = analyze(billing())["analysis"]["nats"]
    shown = {
        (permission, rule["kind"], rule["wildcardSubject"], *rule["requiredCapabilities"])
        for permission, rules in nats.items()
        for rule in rules
    }
    assert shown >= {
        ("publish", "rpc:call", "rpc.v1.Invoice.Get"),
        ("subscribe", "rpc:handle", "rpc.v1.Invoice.Get", OWNER),
        ("publish", "operation:call", "operations.v1.Refund", "billing::refund"),
        ("subscribe", "operation:handle", "operations.v1.Refund", OWNER),
        ("publish", "operation:control", "operations.v1.Refund.control", "billing::cancel"),
        ("publish", "operation:control", "operations.v1.Refund.control", "billing::control"),
        ("subscribe", "operation:control", "operations.v1.Refund.control", OWNER),
        ("publish", "event:publish", "events.v1.Paid.*", OWNER),
        ("subscribe", "event:subscribe", "events.v1.Paid.*", "billing::read"),
        ("publish", "feed:subscribe", "feeds.v1.Balance", "billing::read"),
        ("subscribe", "feed:handle", "feeds.v1.Balance", OWNER),
        ("publish", "transfer:upload", "transfer.v1.upload.*.*", "billing::refund"),
        ("subscribe", "transfer:download", "transfer.v1.download.*.*", "billing::read"),
        ("publish", "resource:kv", "$KV.*.>", OWNER),
        ("publish", "resource:store", "$JS.API.STREAM.INFO.*", OWNER),
        ("publish", "jobs:queue", "trellis.work.*.*", OWNER),
    }


def test_what_is_no_contract_is_refused() -> None:
    with pytest.raises(ContractError):
        analyze({"format": "trellis.contract.v1"})


@settings(max_examples=40)
@given(manifests())
def test_every_contract_can_be_analyzed_and_the_order_of_members_does_not_matter(
    contract: dict[str, Any],
) -> None:
    # But for errors: of two with one type the first counts, by the specification.
    mirrored = {
        name: dict(reversed(part.items())) if isinstance(part, dict) and name != "errors" else part
        for name, part in reversed(contract.items())
    }
    analyzed = analyze(contract)
    assert canonical.encode(analyze(mirrored)) == canonical.encode(analyzed)
    assert json.loads(json.dumps(analyzed)) == analyzed
    summary, analysis = analyzed["analysisSummary"], analyzed["analysis"]
    assert summary["operationControls"] == len(analysis["operations"]["control"])
    assert summary["feeds"] == len(contract.get("feeds", {}))
