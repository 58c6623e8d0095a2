"""The record of an operation, and its frames: the pure part of operations."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accord.fabric import FabricError, ValidationError
from accord.fabric.operations import (
    ControlAction,
    ControlFrame,
    OperationRecord,
    OperationState,
    read_control,
    read_record,
    write_control,
    write_record,
    write_snapshot,
)

ID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
RECORDS = st.builds(
    OperationRecord,
    st.just(ID),
    st.text(min_size=1, max_size=9),
    st.text(max_size=9),
    st.text(max_size=9),
    JSON,
    st.integers(0, 4_000_000_000).map(float),
    st.integers(0, 4_000_000_000).map(float),
    st.sampled_from(OperationState),
    st.integers(1, 99),
    st.integers(1, 5),
    JSON,
    JSON,
    st.none() | st.dictionaries(st.text(max_size=3), JSON),
    st.none() | st.dictionaries(st.text(max_size=3), JSON),
)


@settings(max_examples=40)
@given(RECORDS)
def test_a_record_that_is_written_can_be_read(record: OperationRecord) -> None:
    assert read_record(write_record(record)) == record


@settings(max_examples=40)
@given(RECORDS, st.sampled_from(["progress", "uploaded", "completed", "failed", "cancelled"]))
def test_every_step_that_callers_see_counts(record: OperationRecord, step: str) -> None:
    stepped = {
        "progress": lambda: record.with_progress({"n": 1}, 5.0),
        "uploaded": lambda: record.uploaded({"key": "a"}, 5.0),
        "completed": lambda: record.completed({"n": 1}, 5.0),
        "failed": lambda: record.failed({"type": "X"}, 5.0),
        "cancelled": lambda: record.cancelled(5.0),
    }[step]()
    assert (stepped.revision, stepped.updated_at) == (record.revision + 1, 5.0)
    assert stepped.state.has_ended == (step in ("completed", "failed", "cancelled"))
    again = record.begun_again()
    assert (again.revision, again.attempt) == (record.revision, record.attempt + 1)


@settings(max_examples=40)
@given(RECORDS)
def test_a_caller_sees_neither_input_nor_owner(record: OperationRecord) -> None:
    marked = replace(record, input="the input", owner="the owner", session="the session")
    seen = write_snapshot(marked, "workers")
    assert not {"input", "owner", "session", "attempt"} & set(seen)
    assert ("output" in seen) == (record.state is OperationState.COMPLETED)
    assert ("error" in seen) == (record.state is OperationState.FAILED)
    assert ("completedAt" in seen) == record.state.has_ended


@given(st.binary(max_size=60))
def test_any_bytes_are_a_record_or_refused(data: bytes) -> None:
    with pytest.raises(FabricError):
        read_record(data)


@given(st.sampled_from(ControlAction), JSON)
def test_a_control_frame_that_is_written_can_be_read(action: ControlAction, payload: Any) -> None:
    signal = ("more", payload) if action is ControlAction.SIGNAL else ("", None)
    control = ControlFrame(action, ID, *signal)
    assert read_control(write_control(control)) == control


@given(st.binary(max_size=60))
def test_any_bytes_are_a_control_frame_or_refused(data: bytes) -> None:
    with pytest.raises(ValidationError):
        read_control(data)
