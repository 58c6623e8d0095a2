"""What reconciliation decides, without a server."""

import re
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.authority.reconcile_cases import (
    CONTRACT,
    GROUP,
    JOB,
    KEYED,
    KV,
    STORE,
    deployment,
)

from accord.authority.rules import (
    OWNER,
    NamePrefix,
    ReconcileStep,
    Resource,
    ResourceRef,
    StepAction,
    StreamRetention,
    define_bucket,
    desired_resources,
    physical_name,
    plan_steps,
    platform_resources,
)

World = dict[ResourceRef, Mapping[str, Any]]

texts = st.text(st.characters(codec="utf-8"), max_size=30)
counts = st.integers(1, 64)
resources = st.fixed_dictionaries(
    {},
    optional={
        "kv_a": st.builds(lambda n, ttl: {**KV, "history": n, "ttlMs": ttl}, counts, counts),
        "kv_b": st.builds(lambda n: {**KV, "maxValueBytes": n}, counts),
        "store_a": st.builds(lambda n: {**STORE, "maxTotalBytes": n}, counts),
        "consumer_a": st.builds(
            lambda n, replay, names: {
                **GROUP,
                "maxDeliver": n,
                "replay": replay,
                "filters": sorted(names),
            },
            counts,
            st.sampled_from(["new", "all"]),
            st.sets(st.sampled_from(["events.a", "events.b", "events.c"]), min_size=1),
        ),
        "job_a": st.sampled_from([JOB, KEYED]),
        "job_b": st.just(JOB),
    },
)


def apply(world: World, step: ReconcileStep) -> None:
    """What a server would have after a step; it leaves out what is false, empty or zero."""
    if step.action is StepAction.DELETE:
        del world[step.place]
        return
    assert (step.place in world) is (step.action is StepAction.UPDATE)
    world[step.place] = {name: value for name, value in step.config.items() if value}


def needed(**chosen: Any) -> tuple[Resource, ...]:
    return desired_resources(deployment(**chosen), operating=[CONTRACT]).resources


@given(st.tuples(st.sampled_from(NamePrefix), texts, texts, texts), st.tuples(texts, texts, texts))
def test_a_name_follows_from_its_parts_and_from_nothing_less(
    one: tuple[NamePrefix, str, str, str], other: tuple[str, str, str]
) -> None:
    name = physical_name(*one)
    assert re.fullmatch(r"acc_[a-z]+_[a-z2-7]{26}", name)
    assert name == physical_name(*one)
    assert (name == physical_name(one[0], *other)) is (one[1:] == other)


def test_names_stay_what_they_are() -> None:
    assert physical_name(NamePrefix.KV, "shop-prod", CONTRACT, "carts") == (
        "acc_kv_k2bhvriagzogv4qy6dcoqm5rn5"
    )


@given(resources, resources, st.data())
def test_from_wherever_it_was_interrupted_it_comes_to_the_same(
    before: dict[str, Any], after: dict[str, Any], data: st.DataObject
) -> None:
    world: World = {}
    for step in plan_steps(needed(**before), world).steps:
        apply(world, step)
    released = {each.place for each in needed(**before)} - {each.place for each in needed(**after)}
    straight = dict(world)
    steps = plan_steps(needed(**after), straight, released=released).steps
    for step in steps:
        apply(straight, step)
    for step in steps[: data.draw(st.integers(0, len(steps)))]:
        apply(world, step)
    for step in plan_steps(needed(**after), world, released=released).steps:
        apply(world, step)
    assert world == straight
    assert not plan_steps(needed(**after), world, released=released).steps


@given(resources, resources)
def test_a_stream_is_never_deleted(before: dict[str, Any], after: dict[str, Any]) -> None:
    world: World = {}
    for step in plan_steps(needed(**before), world).steps:
        apply(world, step)
    steps = plan_steps(needed(**after), world, released=set(world)).steps
    assert all(step.place.consumer for step in steps if step.action is StepAction.DELETE)


@given(st.data())
def test_one_conflict_and_there_are_no_steps(data: st.DataObject) -> None:
    everything = needed()
    taken = data.draw(st.sampled_from(everything))
    world: World = {taken.place: {**taken.config, "metadata": {OWNER: "somebody else"}}}
    judged = plan_steps(everything, world)
    assert not judged.steps
    assert [finding.rule for finding in judged.conflicts] == ["reconcile.conflict"]
    assert "belongs to 'somebody else'" in judged.conflicts[0].message


def test_an_update_leaves_what_others_set() -> None:
    wanted_bucket = define_bucket("b", "me", history=2)
    seen = {**wanted_bucket.config, "max_msgs_per_subject": 5, "republish": {"dest": "x.>"}}
    place = wanted_bucket.place
    judged = plan_steps(
        [wanted_bucket], {place: {**seen, "metadata": {OWNER: "me", "team": "blue"}}}
    )
    (step,) = judged.steps
    assert str(step) == "update KV_b (max_msgs_per_subject)"
    assert step.config["max_msgs_per_subject"] == 2
    assert step.config["republish"] == {"dest": "x.>"}
    assert step.config["metadata"] == {OWNER: "me", "team": "blue"}


def test_streams_come_before_the_consumers_on_them() -> None:
    places = [step.place for step in plan_steps(needed(), {}).steps]
    assert [bool(place.consumer) for place in places] == [False] * 5 + [True] * 3


def test_two_deployments_of_one_contract_share_nothing() -> None:
    one = {
        each.place for each in desired_resources(deployment("one"), operating=[CONTRACT]).resources
    }
    other = {
        each.place
        for each in desired_resources(deployment("other"), operating=[CONTRACT]).resources
    }
    assert not one & other


def test_settings_say_what_a_runtime_must_know() -> None:
    settings = desired_resources(deployment(), operating=[CONTRACT]).settings[CONTRACT]
    name = physical_name(NamePrefix.KV, "shop-prod", CONTRACT, "prices")
    assert settings["kv"]["prices"] == {
        "bucket": name,
        "history": 3,
        "ttlMs": 3_600_000,
        "maxValueBytes": 1000,
    }
    assert settings["store"]["scans"]["maxObjectBytes"] == 999
    assert settings["consumers"]["audit"] == {
        "stream": "trellis",
        "consumer": physical_name(NamePrefix.CONSUMER, "shop-prod", CONTRACT, "audit"),
        "filterSubjects": ["events.v1.Shop.Opened"],
        "replay": "new",
        "ordering": "strict",
        "concurrency": 1,
        "ackWaitMs": 300_000,
        "maxDeliver": 6,
        "backoffMs": [5000, 30000, 120000, 600000, 1800000],
    }
    sync = settings["jobs"]["queues"]["sync"]
    namespace = settings["jobs"]["namespace"]
    assert sync["workSubject"] == f"trellis.work.{namespace}.{sync['consumerName']}"
    assert sync["publishPrefix"] == f"trellis.jobs.{namespace}.{sync['consumerName']}"
    assert sync["backoffMs"] == [5000, 30000, 120000, 600000]
    assert sync["keyConcurrency"] == {
        "key": ["shop", "/id"],
        "maxActive": 1,
        "heartbeatIntervalMs": 10_000,
        "heartbeatTtlMs": 30_000,
        "stalePolicy": "fail-stale",
    }
    assert sync["queue"] == {"maxQueuedPerKey": 2, "whenFull": "reject"}
    assert "keyBucket" not in settings["jobs"]["queues"]["refund"]


def test_only_a_contract_with_operations_gets_a_bucket_for_them() -> None:
    without = desired_resources(deployment())
    assert "operations" not in without.settings[CONTRACT]
    assert without.bindings[CONTRACT].operations is None
    only = desired_resources(deployment(kv_a=KV), operating=["other@v1"])
    assert only.bindings["other@v1"].operations == only.settings["other@v1"]["operations"]["bucket"]


def test_the_shared_streams_are_those_of_the_specification() -> None:
    keeping = StreamRetention(events_days=1 / 1440, events_megabytes=3, state_megabytes=5)
    shared = {each.place.stream: each.config for each in platform_resources(keeping)}
    assert shared["trellis"]["subjects"] == ["events.>"]
    assert shared["trellis"]["max_age"] == 60_000_000_000
    assert shared["JOBS"]["subjects"] == ["trellis.jobs.>"]
    assert shared["JOBS_WORK"]["retention"] == "workqueue"
    assert shared["JOBS_ADVISORIES"]["max_age"] == 7 * 24 * 3600 * 10**9
    assert {config["storage"] for config in shared.values()} == {"file"}
    assert shared["trellis"]["max_bytes"] == 3 << 20
    assert shared["KV_acc_state"]["max_bytes"] == 5 << 20


def test_the_shared_streams_are_bounded_by_default() -> None:
    shared = {each.place.stream: each.config for each in platform_resources(StreamRetention())}
    kept = {
        name for name, config in shared.items() if config["max_age"] and config["max_bytes"] > 0
    }
    assert kept == {"trellis", "JOBS", "JOBS_ADVISORIES"}
    # Of what was accepted and not done nothing goes; more of it is refused.
    work = shared["JOBS_WORK"]
    assert (work["max_age"], work["discard"]) == (0, "new")
    assert work["max_bytes"] > 0


def test_a_limit_of_nothing_is_no_limit() -> None:
    keeping = StreamRetention(0, 0, 0, 0, 0, 0)
    shared = {each.place.stream: each.config for each in platform_resources(keeping)}
    for name in ("trellis", "JOBS", "JOBS_WORK", "KV_acc_state"):
        assert (shared[name]["max_age"], shared[name]["max_bytes"]) == (0, -1)


@pytest.mark.parametrize("ttl_ms", [0, 1, 99, 100, 119_999, 120_001, 10 * 365 * 24 * 3_600_000])
def test_no_age_is_one_that_the_server_would_refuse(ttl_ms: int) -> None:
    config = define_bucket("b", "me", ttl_ms=ttl_ms).config
    assert config["max_age"] == 0 or config["max_age"] >= 100_000_000
    assert config["max_age"] == 0 or config["duplicate_window"] <= config["max_age"]
