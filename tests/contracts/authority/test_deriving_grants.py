"""What a session may touch, and why (specification, section 16)."""

import pickle
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from accord.contracts import (
    Bindings,
    ContractError,
    EffectiveContract,
    Grants,
    SessionRole,
    grants,
    resolve_uses,
    union,
)
from accord.contracts.permissions import BOUND, OWNED, USED, ConsumerBinding, QueueBinding

Make = Callable[..., dict[str, Any]]
Active = dict[str, EffectiveContract]

KEY = "0123456789abcdefGHIJKLMNOPQRSTUVWXYZ-_abcde"
INBOX = "_INBOX.0123456789abcdef.>"
ALL = {f"billing::{name}" for name in ("read", "write", "refund", "cancel", "control")}
BINDINGS = Bindings(
    kv={"activity": "acc_kv_1"},
    store={"uploads": "acc_os_1"},
    consumers={"ledger": ConsumerBinding("EVENTS", "acc_ec_1")},
    jobs={
        "settle": QueueBinding("billing", "settle", "acc_jq_1"),
        "sync": QueueBinding("billing", "sync", "acc_jq_2", key_bucket="acc_kv_2"),
    },
    operations="acc_op_1",
)


def calling(contract: dict[str, Any], active: Active, capabilities: Iterable[str] = ALL) -> Grants:
    return grants(
        contract,
        role=SessionRole.CALLER,
        resolution=resolve_uses(contract, active),
        capabilities=set(capabilities),
        session_key=KEY,
    )


def serving(contract: dict[str, Any], active: Active, bindings: Bindings = BINDINGS) -> Grants:
    return grants(
        contract,
        role=SessionRole.SERVICE,
        resolution=resolve_uses(contract, active),
        capabilities=set(),
        bindings=bindings,
        session_key=KEY,
    )


def bucket(name: str) -> set[str]:
    stream = f"KV_{name}"
    return {
        f"$KV.{name}.>",
        f"$JS.API.STREAM.INFO.{stream}",
        f"$JS.API.STREAM.MSG.GET.{stream}",
        f"$JS.API.DIRECT.GET.{stream}",
        f"$JS.API.DIRECT.GET.{stream}.>",
    }


def records(name: str) -> set[str]:
    return bucket(name) | {f"$JS.API.STREAM.PURGE.KV_{name}"}


def pulling(place: str) -> set[str]:
    return {
        f"$JS.API.CONSUMER.INFO.{place}",
        f"$JS.API.CONSUMER.MSG.NEXT.{place}",
        f"$JS.ACK.{place}.>",
    }


def test_a_caller_that_holds_everything_gets_what_it_uses(app: Make, active: Active) -> None:
    granted = calling(app(), active)
    assert set(granted.publish) == {
        "rpc.v1.Invoice.Get",
        "rpc.v1.Invoice.Scan",
        "operations.v1.Refund",
        "operations.v1.Refund.control",
        "events.v1.Paid.*",
        "feeds.v1.Balance",
        "transfer.v1.upload.*.*",
    }
    assert set(granted.subscribe) == {INBOX, "events.v1.Paid.*", "transfer.v1.download.*.*"}
    assert granted.withheld == ()


def test_a_caller_that_holds_nothing_gets_what_needs_nothing(app: Make, active: Active) -> None:
    granted = calling(app(), active, ())
    assert set(granted.publish) == {"rpc.v1.Invoice.Get"}
    assert set(granted.subscribe) == {INBOX}


def test_what_is_withheld_names_the_missing_capabilities(app: Make, active: Active) -> None:
    withheld = calling(app(), active, ALL - {"billing::cancel"}).withheld
    assert [(finding.rule, finding.pointer) for finding in withheld] == [
        ("use.operation.cancel", "/uses/required/bill/operations/call/0")
    ]
    assert withheld[0].message.endswith("needs billing::cancel")


def test_a_caller_gets_nothing_of_its_own_contract_and_no_bindings(
    billing: Make, active: Active
) -> None:
    contract = billing()
    granted = grants(
        contract,
        role=SessionRole.CALLER,
        resolution=resolve_uses(contract, active),
        capabilities=ALL,
        bindings=BINDINGS,
        session_key=KEY,
    )
    assert (set(granted.publish), set(granted.subscribe)) == (set(), {INBOX})


def test_capabilities_alone_give_nothing(app: Make, active: Active) -> None:
    assert set(calling(app(uses={}), active).publish) == set()


def test_a_service_gets_what_it_owns_and_exactly_what_is_bound(billing: Make) -> None:
    granted = serving(billing(), {})
    assert set(granted.subscribe) == {
        INBOX,
        "rpc.v1.Invoice.Get",
        "rpc.v1.Invoice.Scan",
        "operations.v1.Refund",
        "operations.v1.Refund.control",
        "feeds.v1.Balance",
        "transfer.v1.upload.0123456789abcdef.*",
        "transfer.v1.download.0123456789abcdef.*",
        "trellis.jobs.billing.settle.>",
        "trellis.jobs.billing.sync.>",
        "$KV.acc_op_1.>",
    }
    stream = "OBJ_acc_os_1"
    assert set(granted.publish) == {
        "events.v1.Paid.*",
        "transfer.v1.download.0123456789abcdef.*",
        "$O.acc_os_1.>",
        f"$JS.API.STREAM.INFO.{stream}",
        f"$JS.API.STREAM.MSG.GET.{stream}",
        f"$JS.API.DIRECT.GET.{stream}",
        f"$JS.API.DIRECT.GET.{stream}.>",
        f"$JS.API.STREAM.PURGE.{stream}",
        "trellis.jobs.billing.settle.>",
        "trellis.work.billing.settle",
        "$JS.API.DIRECT.GET.JOBS.trellis.jobs.billing.settle.>",
        "trellis.jobs.billing.sync.>",
        "trellis.work.billing.sync",
        "$JS.API.DIRECT.GET.JOBS.trellis.jobs.billing.sync.>",
        *bucket("acc_kv_1"),
        *records("acc_kv_2"),
        *records("acc_op_1"),
        *pulling("EVENTS.acc_ec_1"),
        *pulling("JOBS_WORK.acc_jq_1"),
        *pulling("JOBS_WORK.acc_jq_2"),
    }


def test_a_service_that_uses_another_is_a_caller_too(app: Make, active: Active) -> None:
    service = app(kind="service")
    assert set(serving(service, active).publish) == {"rpc.v1.Invoice.Get"}


def test_a_binding_that_the_contract_does_not_declare_gives_nothing(billing: Make) -> None:
    bare = billing(resources={}, jobs={}, eventConsumers={}, operations={})
    assert not any(subject.startswith(("$", "trellis.")) for subject in serving(bare, {}).publish)
    unkeyed = billing(jobs={"sync": {"payload": {"schema": "Any"}}})
    assert not records("acc_kv_2") & set(serving(unkeyed, {}).publish)


def test_the_records_of_operations_are_for_whoever_runs_operations(billing: Make) -> None:
    granted = serving(billing(), {})
    assert records("acc_op_1") <= set(granted.publish)
    assert [reason.rule for reason in granted.subscribe["$KV.acc_op_1.>"]] == ["bound.operations"]
    rest = serving(billing(operations={}), {})
    assert not any("acc_op_1" in subject for subject in (*rest.publish, *rest.subscribe))


def test_what_is_declared_but_not_bound_gives_nothing(billing: Make) -> None:
    granted = serving(billing(), {}, Bindings())
    assert not any(subject.startswith(("$", "trellis.")) for subject in granted.publish)


def test_no_session_may_create_a_consumer(billing: Make) -> None:
    assert not any("CONSUMER.CREATE" in subject for subject in serving(billing(), {}).publish)


def control_of(billing: Make, app: Make, held: set[str], **members: Any) -> set[str]:
    service = billing()
    operation = service["operations"]["Refund"]
    operation |= members
    active = {"billing@v1": union([service])}
    reasons = calling(app(), active, held).publish.get("operations.v1.Refund.control", ())
    return {reason.rule.rpartition(".")[2] for reason in reasons}


@pytest.mark.parametrize(
    ("lists", "held", "expected"),
    [
        ({"call": ["c"]}, set(), {"signal"}),
        ({"call": ["c"]}, {"c"}, {"observe", "signal"}),
        ({"call": ["c"], "control": ["s"]}, set(), set()),
        ({"call": ["c"], "control": ["s"]}, {"s"}, {"signal"}),
        ({"call": ["c"], "control": ["s"], "cancel": []}, set(), {"cancel"}),
        ({"call": ["c"], "control": ["s"], "cancel": ["x"]}, {"x"}, {"cancel"}),
        ({"call": ["c"], "control": ["s"], "cancel": ["x", "y"]}, {"x"}, set()),
        ({"call": ["c"], "control": ["s"], "observe": []}, set(), {"observe"}),
        ({"call": ["c"], "control": ["s"], "observe": ["o"]}, {"c"}, set()),
        ({}, set(), {"observe", "signal"}),
    ],
)
def test_the_control_subject_is_granted_for_each_action_by_its_own_list(
    billing: Make, app: Make, lists: dict[str, list[str]], held: set[str], expected: set[str]
) -> None:
    assert control_of(billing, app, held, capabilities=lists) == expected


def test_cancel_needs_support_and_signals_need_to_exist(billing: Make, app: Make) -> None:
    lists = {"call": ["c"], "cancel": [], "control": []}
    assert control_of(billing, app, set(), capabilities=lists, cancel=False) == {"signal"}
    assert control_of(billing, app, set(), capabilities=lists, signals={}) == {"cancel"}


def test_transfers_are_granted_only_where_a_used_surface_declares_them(
    billing: Make, app: Make
) -> None:
    service = billing()
    del service["operations"]["Refund"]["transfer"]
    del service["rpc"]["Invoice.Scan"]["transfer"]
    granted = calling(app(), {"billing@v1": union([service])})
    assert not any(s.startswith("transfer.") for s in (*granted.publish, *granted.subscribe))
    owned = serving(service, {})
    assert not any(s.startswith("transfer.") for s in (*owned.publish, *owned.subscribe))


def test_a_transfer_needs_the_capabilities_of_call(app: Make, active: Active) -> None:
    granted = calling(app(), active, {"billing::cancel"})
    assert "transfer.v1.upload.*.*" not in granted.publish
    assert "transfer.v1.download.*.*" not in granted.subscribe


def consuming(app: Make) -> dict[str, Any]:
    return app(kind="service", eventConsumers={"ledger": {"uses": {"bill": ["Paid"]}}})


def test_a_durable_consumer_is_no_way_around_the_events_capabilities(
    app: Make, active: Active
) -> None:
    contract = consuming(app)
    resolution = resolve_uses(contract, active)

    def granted(capabilities: set[str]) -> Grants:
        return grants(
            contract,
            role=SessionRole.SERVICE,
            resolution=resolution,
            capabilities=capabilities,
            bindings=BINDINGS,
            session_key=KEY,
        )

    assert pulling("EVENTS.acc_ec_1") <= set(granted({"billing::read"}).publish)
    barred = granted(set())
    assert not pulling("EVENTS.acc_ec_1") & set(barred.publish)
    assert "/eventConsumers/ledger" in {finding.pointer for finding in barred.withheld}


def test_a_consumer_of_an_absent_optional_use_keeps_its_binding(app: Make) -> None:
    contract = consuming(app)
    contract["uses"] = {"optional": contract["uses"]["required"]}
    assert pulling("EVENTS.acc_ec_1") <= set(serving(contract, {}).publish)


def test_every_subject_says_why(app: Make, active: Active) -> None:
    (reason,) = calling(app(), active).publish["feeds.v1.Balance"]
    assert str(reason) == (
        "/uses/required/bill/feeds/subscribe/0: the use 'bill' asks for the feed 'Balance' of"
        " billing@v1 [use.feed.subscribe]"
    )


def test_two_uses_of_one_surface_are_two_reasons(app: Make, active: Active) -> None:
    contract = app()
    again = {"contract": "billing@v1", "feeds": {"subscribe": ["Balance"]}}
    contract["uses"]["optional"] = {"again": again}
    assert [reason.pointer for reason in calling(contract, active).publish["feeds.v1.Balance"]] == [
        "/uses/optional/again/feeds/subscribe/0",
        "/uses/required/bill/feeds/subscribe/0",
    ]


def test_a_blocked_contract_gets_nothing_at_all(app: Make) -> None:
    blocked = calling(app(), {})
    assert not blocked.ok
    assert (dict(blocked.publish), dict(blocked.subscribe)) == ({}, {})
    assert blocked.blockers == resolve_uses(app(), {}).blockers


def test_the_resolution_of_another_contract_is_refused(
    app: Make, billing: Make, active: Active
) -> None:
    with pytest.raises(ContractError, match="another contract"):
        grants(
            billing(),
            role=SessionRole.CALLER,
            resolution=resolve_uses(app(), active),
            capabilities=set(),
            session_key=KEY,
        )


@pytest.mark.parametrize("value", [None, 5, [], {}, {"id": "x@v1"}])
def test_what_is_no_contract_is_refused(app: Make, active: Active, value: Any) -> None:
    with pytest.raises(ContractError):
        grants(
            value,
            role=SessionRole.SERVICE,
            resolution=resolve_uses(app(), active),
            capabilities=set(),
            session_key=KEY,
        )


def test_ten_thousand_uses_and_surfaces_are_granted(billing: Make, app: Make) -> None:
    plain = {"version": "v1", "input": {"schema": "Any"}, "output": {"schema": "Any"}}
    many = billing(rpc={f"R{n}": {**plain, "subject": f"rpc.v1.R{n}"} for n in range(10_000)})
    user = app(
        uses={"required": {"b": {"contract": "billing@v1", "rpc": {"call": [*many["rpc"]]}}}}
    )
    assert len(calling(user, {"billing@v1": union([many])}).publish) == 10_000
    assert len(serving(many, {}).subscribe) > 10_000


def test_grants_can_be_sent_to_another_process(app: Make, active: Active) -> None:
    granted = calling(app(), active)
    assert pickle.loads(pickle.dumps(granted)) == granted


def test_rules_have_ids_of_their_own() -> None:
    rules = [rule.id for rule in (*USED, *OWNED, *BOUND)]
    assert len(set(rules)) == len(rules)
