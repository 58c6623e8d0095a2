"""What a change of state, jobs, consumers, resources and uses means."""

from collections.abc import Callable
from typing import Any

import pytest

from accord.contracts import compare

Contract = Callable[..., dict[str, Any]]
Edit = Callable[[dict[str, Any]], object]


def changes(contract: Contract, edit: Edit, **relation: Any) -> list[tuple[str, str]]:
    new = contract()
    edit(new)
    report = compare(contract(), new, **relation)
    return [(change.rule, change.category) for change in (*report.findings, *report.updates)]


def job(**settings: Any) -> Edit:
    return lambda new: new["jobs"]["plain"].update(settings)


def keyed(**settings: Any) -> Edit:
    return lambda new: new["jobs"]["sync"]["keyConcurrency"].update(settings)


def group(**settings: Any) -> Edit:
    return lambda new: new["eventConsumers"]["projection"].update(settings)


def state(**settings: Any) -> Edit:
    return lambda new: new["state"]["drafts"].update(settings)


@pytest.mark.parametrize(
    "edit",
    [
        job(maxDeliver=4),
        job(ackWaitMs=299_999),
        job(backoffMs=[5000]),
        job(backoffMs=[]),
        job(defaultDeadlineMs=10**9),
        job(dlq=False),
        keyed(key=["sync"]),
        keyed(stalePolicy="block"),
        keyed(heartbeatIntervalMs=10),
        keyed(heartbeatTtlMs=10),
    ],
)
def test_a_queue_that_may_lose_reject_skip_or_double_jobs_is_a_migration(
    contract: Contract, edit: Edit
) -> None:
    assert changes(contract, edit) == [("job.tightened", "migration")]


@pytest.mark.parametrize(
    "edit",
    [
        job(maxDeliver=6),
        job(ackWaitMs=300_001),
        job(backoffMs=[1_800_000]),
        job(concurrency=3),
        job(logs=False),
        keyed(maxActive=3),
    ],
)
def test_a_queue_that_tries_or_admits_more_is_an_update(contract: Contract, edit: Edit) -> None:
    assert changes(contract, edit) == [("job.loosened", "update")]


@pytest.mark.parametrize(
    "edit",
    [
        job(maxDeliver=5, ackWaitMs=300_000, progress=True, dlq=True),
        job(queue={"maxQueuedPerKey": 7}),  # without a key there is no policy
        keyed(stalePolicy="fail-stale"),
        lambda new: new["jobs"]["plain"].pop("maxDeliver"),
        lambda new: new["resources"]["store"]["files"].pop("ttlMs"),
        lambda new: new["eventConsumers"]["projection"].update(replay="new"),
        lambda new: new["events"]["Changed"].update(params=[]),
    ],
)
def test_a_default_spelled_out_is_no_change(contract: Contract, edit: Edit) -> None:
    assert changes(contract, edit) == []


def test_a_queue_that_loses_its_key_is_a_migration(contract: Contract) -> None:
    def unkey(new: dict[str, Any]) -> None:
        del new["jobs"]["sync"]["keyConcurrency"]

    assert changes(contract, unkey) == [("job.keyed", "migration")]


@pytest.mark.parametrize(
    "edit",
    [
        group(replay="all"),
        group(ackWaitMs=999),
        group(maxDeliver=4),
        group(backoffMs=[10, 19]),
        lambda new: new["eventConsumers"]["projection"].pop("ackWaitMs"),
    ],
)
def test_delivery_that_may_skip_or_double_events_is_a_migration(
    contract: Contract, edit: Edit
) -> None:
    assert changes(contract, edit) == [("consumer.delivery", "migration")]


def test_more_patient_delivery_is_an_update(contract: Contract) -> None:
    edit = group(ackWaitMs=2000, maxDeliver=6, backoffMs=[10, 20, 30])
    assert set(changes(contract, edit)) == {("consumer.loosened", "update")}


def test_events_of_a_group_may_be_added_and_not_removed(contract: Contract) -> None:
    more = group(uses={"billing": ["Paid", "Refunded"]})
    assert changes(contract, more) == [("consumer.widened", "update")]
    assert changes(contract, group(uses={})) == [("consumer.narrowed", "migration")]
    assert changes(contract, group(self=[])) == [("consumer.narrowed", "migration")]


def test_a_renamed_group_is_a_migration(contract: Contract) -> None:
    def rename(new: dict[str, Any]) -> None:
        new["eventConsumers"]["other"] = new["eventConsumers"].pop("projection")

    assert changes(contract, rename) == [
        ("consumer.removed", "migration"),
        ("consumer.added", "update"),
    ]


def test_an_alias_is_only_a_name(contract: Contract) -> None:
    def rename(new: dict[str, Any]) -> None:
        new["uses"]["required"]["money"] = new["uses"]["required"].pop("billing")
        new["eventConsumers"]["projection"]["uses"] = {"money": ["Paid"]}

    assert changes(contract, rename) == []


def test_state_goes_on_under_a_new_version_that_accepts_the_old_ones(contract: Contract) -> None:
    def advance(new: dict[str, Any]) -> None:
        new["schemas"]["next"] = {"type": "object", "required": ["b"]}
        store = new["state"]["drafts"]
        store["acceptedVersions"]["v2"] = store["schema"]
        store.update(schema={"schema": "next"}, stateVersion="v3")

    assert {category for _, category in changes(contract, advance)} == {"update"}
    assert ("state.version-ahead", "breaking") in changes(contract, advance, relation="coexistence")


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (lambda new: new["state"].pop("drafts"), ("state.removed", "migration")),
        (state(kind="value"), ("state.kind", "breaking")),
        (state(acceptedVersions={}), ("state.version-dropped", "breaking")),
        (state(stateVersion="v3"), ("state.version-dropped", "breaking")),
    ],
)
def test_state_that_can_no_longer_be_read_is_not_lost_quietly(
    contract: Contract, edit: Edit, expected: tuple[str, str]
) -> None:
    assert expected in changes(contract, edit)


def test_new_stores_are_updates(contract: Contract) -> None:
    def add(new: dict[str, Any]) -> None:
        new["state"]["more"] = {"kind": "value", "schema": {"schema": "kv"}}

    assert changes(contract, add) == [("state.added", "update")]


def test_uses_may_vary(contract: Contract) -> None:
    def use(new: dict[str, Any]) -> None:
        new["uses"]["required"]["billing"]["rpc"]["call"] = ["Refund"]

    assert changes(contract, use) == [("uses.removed", "note"), ("uses.added", "update")]


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (lambda new: new.update(id="graph@v2", capabilities={}), ("contract.lineage", "breaking")),
        (lambda new: new.update(kind="device"), ("contract.kind", "breaking")),
        (
            lambda new: new["rpc"]["Find"].update(version="v2"),
            ("surface.version", "note"),
        ),
        (
            lambda new: new["rpc"]["Find"].update(transfer={"direction": "receive"}),
            ("surface.transfer", "breaking"),
        ),
        (
            lambda new: new["operations"]["Import"].update(cancel=False),
            ("surface.removed", "breaking"),
        ),
        (
            lambda new: new["operations"]["Import"].pop("progress"),
            ("surface.removed", "breaking"),
        ),
        (lambda new: new["jobs"]["sync"].pop("result"), ("surface.removed", "breaking")),
        (
            lambda new: new["operations"]["Import"]["capabilities"].pop("cancel"),
            ("capability.added", "breaking"),
        ),
        (
            lambda new: new["capabilities"]["graph::read"].update(consequence="Sees all."),
            ("capability.described", "note"),
        ),
    ],
)
def test_what_others_meet(contract: Contract, edit: Edit, expected: tuple[str, str]) -> None:
    assert expected in changes(contract, edit)


def test_a_cancel_list_that_appears_opens_what_was_nobodys(contract: Contract) -> None:
    old = contract()
    del old["operations"]["Import"]["capabilities"]["cancel"]
    (change,) = compare(old, contract()).findings
    assert (change.rule, change.category) == ("capability.removed", "migration")


def test_a_transfer_may_take_more_and_not_less(contract: Contract) -> None:
    def transferring(**limits: int) -> dict[str, Any]:
        built = contract()
        built["operations"]["Import"]["transfer"] = {
            "direction": "send",
            "store": "files",
            "key": "/a",
            **limits,
        }
        return built

    small, large = transferring(maxBytes=5), transferring(maxBytes=6)
    assert [change.rule for change in compare(small, large).updates] == [
        "surface.transfer-loosened"
    ]
    assert [change.rule for change in compare(large, small).findings] == [
        "surface.transfer-tightened"
    ]
    assert not compare(small, large, "coexistence").compatible
    assert not compare(transferring(), small).compatible
