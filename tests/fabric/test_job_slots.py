"""Slots of a key, keys of a payload, and the events of a job: the pure part of jobs."""

import hashlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.fabric import FabricError, ValidationError
from accord.fabric.jobs import NO_SLOTS, Job, JobEvent, KeyPolicy, KeySlots, read_job, write_event
from accord.fabric.rules import jobs as steps

KEYED = KeyPolicy("bucket", ("zendesk", "/origin"), 1, 10.0, 30.0, True, 0, "reject")
POLICIES = st.builds(
    KeyPolicy,
    st.just("bucket"),
    st.just(("/n",)),
    st.integers(1, 3),
    st.just(1.0),
    st.just(3.0),
    st.booleans(),
    st.integers(0, 3),
    st.sampled_from(("reject", "coalesce", "replace-oldest")),
)
JOBS = st.sampled_from([f"job{n}" for n in range(8)])


@given(POLICIES, st.lists(st.tuples(st.sampled_from(("admit", "begin", "release")), JOBS)))
def test_no_more_run_or_wait_than_may(keyed: KeyPolicy, history: list[tuple[str, str]]) -> None:
    slots = NO_SLOTS
    for step, job in history:
        before = slots
        if step == "admit":
            slots, admission = steps.admit_job(slots, job, keyed)
            known = {slot.job for slot in slots.active} | {*slots.queued}
            assert (job in known) == (admission.outcome in ("granted", "queued"))
            if admission.outcome in ("rejected", "coalesced"):
                assert slots == before
        elif step == "begin":
            slots = steps.begin_job(slots, job)
            assert [slot.job for slot in slots.active] == [slot.job for slot in before.active]
        else:
            slots, granted = steps.release_job(slots, job, keyed)
            waiting = [each for each in before.queued if each != job]
            assert [*granted, *slots.queued] == waiting  # the first that wait are the first to run
            assert slots.slot(job) is None
        assert len(slots.active) <= keyed.max_active
        assert len(slots.queued) <= keyed.max_queued
        everybody = [slot.job for slot in slots.active] + [*slots.queued]
        assert len(set(everybody)) == len(everybody)
        assert not slots.queued or len(slots.active) == keyed.max_active
        assert steps.read_slots(steps.write_slots(slots)) == slots


@given(POLICIES, JOBS)
def test_a_job_that_comes_twice_is_in_once(keyed: KeyPolicy, job: str) -> None:
    slots, first = steps.admit_job(NO_SLOTS, job, keyed)
    assert steps.admit_job(slots, job, keyed) == (slots, first)


def test_what_an_administrator_wants_waits_even_where_the_queue_is_full() -> None:
    slots, _ = steps.admit_job(NO_SLOTS, "a", KEYED)
    assert steps.admit_job(slots, "b", KEYED)[1].outcome == "rejected"
    slots, admission = steps.admit_job(slots, "b", KEYED, anyway=True)
    assert (admission.outcome, slots.queued) == ("queued", ("b",))


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"active":[{}],"queued":[]}', b"\xff"])
def test_what_are_no_slots_is_refused(data: bytes) -> None:
    with pytest.raises(FabricError):
        steps.read_slots(data)


def test_tries_are_counted_for_the_job_that_is_begun() -> None:
    slots = KeySlots((steps.Slot("a"), steps.Slot("b", 2)))
    assert [slot.tries for slot in steps.begin_job(slots, "b").active] == [0, 3]
    assert steps.begin_job(slots, "c") == slots


def test_the_key_is_the_hash_of_its_segments() -> None:
    canonical = b'{"segments":["zendesk","eu"],"version":1}'
    assert KEYED.key({"origin": "eu"}) == hashlib.sha256(canonical).hexdigest()
    deep = replace(KEYED, segments=("/a/b~1c/0",))
    assert deep.key({"a": {"b/c": [7]}}) == replace(KEYED, segments=("/x",)).key({"x": 7})
    assert deep.key({"a": {"b/c": ["7"]}}) != deep.key({"a": {"b/c": [7]}})


@pytest.mark.parametrize("payload", [{}, {"origin": {}}, {"origin": []}, [], None, "origin"])
def test_a_payload_without_its_key_is_refused(payload: Any) -> None:
    with pytest.raises(ValidationError):
        KEYED.key(payload)


@given(
    st.builds(
        Job,
        st.just("01ARZ3NDEKTSV4RRFFQ69G5FAV"),
        st.text(max_size=5),
        st.text(max_size=5),
        st.dictionaries(st.text(max_size=3), st.integers(-9, 9)),
        st.integers(1, 9),
        st.none() | st.integers(0, 4_000_000_000).map(float),
        st.dictionaries(st.text(max_size=3), st.text(max_size=3)),
    )
)
def test_workers_are_given_the_job_that_was_submitted(job: Job) -> None:
    written = write_event(job, JobEvent.CREATED, 0.0, tries=0, payload=job.payload)
    assert read_job(written) == job
    again = write_event(job, JobEvent.RETRIED, 0.0, tries=0, payload=job.payload)
    assert read_job(again) == replace(job, is_retried=True)


@given(st.binary(max_size=40))
def test_any_bytes_are_a_job_or_refused(data: bytes) -> None:
    with pytest.raises(ValidationError):
        read_job(data)
