"""Frames: what is written is read back, and what is not a frame is a value."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.kernel import canonical
from accord.relay import rules

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
ids = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
optional = st.none() | texts
metadata = st.dictionaries(ids, texts | st.integers(-5, 5) | st.booleans(), max_size=3)
sources = st.builds(
    rules.SessionSource,
    platform=ids,
    chat_id=texts,
    chat_type=ids,
    chat_name=optional,
    user_id=optional,
    thread_id=optional,
    scope_id=optional,
    message_id=optional,
)
events = st.builds(
    rules.MessageEvent,
    text=texts,
    source=sources,
    message_type=st.sampled_from(rules.MessageType),
    message_id=optional,
    media_urls=st.lists(texts, max_size=2).map(tuple),
    bot_id=optional,
)
actions = (
    st.builds(rules.Send, ids, texts, optional, metadata)
    | st.builds(rules.Edit, ids, ids, texts, metadata)
    | st.builds(rules.Typing, ids)
    | st.builds(rules.FollowUp, ids, ids, texts, metadata)
    | st.builds(rules.GetChatInfo, ids)
)
descriptors = st.builds(
    rules.Descriptor,
    platform=ids,
    label=texts,
    max_message_length=st.integers(2, 10_000),
    supports_draft_streaming=st.booleans(),
    supports_edit=st.booleans(),
    supports_threads=st.booleans(),
    markdown_dialect=texts,
    len_unit=texts,
    emoji=optional,
    platform_hint=texts,
    pii_safe=st.booleans(),
)
forwards = st.builds(
    rules.PassthroughForward,
    texts,
    texts,
    texts,
    texts,
    st.lists(st.tuples(texts, texts), max_size=3).map(tuple),
    st.binary(max_size=40),
)
results = st.builds(rules.Result, st.booleans(), optional, optional, st.none() | metadata)
optional_ids = st.none() | ids
sessions = st.builds(
    rules.SessionRules,
    st.sampled_from(["hermes", "scoped"]),
    st.booleans(),
    st.booleans(),
    st.none() | st.sampled_from(["default", "main", "coder"]),
    st.sampled_from(["2026-07", "current"]),
)
frames: st.SearchStrategy[rules.Frame] = st.one_of(
    st.builds(rules.Hello, ids, texts, sessions, st.none() | metadata),
    st.builds(rules.Outbound, ids, actions, optional_ids, optional_ids),
    st.builds(rules.Interrupt, texts, optional),
    st.just(rules.GoingIdle()),
    st.builds(rules.InboundAck, ids),
    st.builds(rules.Described, descriptors),
    st.builds(rules.Inbound, events, optional_ids),
    st.builds(rules.OutboundResult, ids, results),
    st.builds(rules.InterruptInbound, texts, texts),
    st.builds(rules.Passthrough, forwards, optional_ids),
    st.builds(rules.GoingIdleAck, st.none() | st.booleans()),
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
TYPES = (
    "hello",
    "outbound",
    "interrupt",
    "inbound_ack",
    "descriptor",
    "inbound",
    "outbound_result",
    "interrupt_inbound",
    "passthrough_forward",
)


@given(frames)
def test_what_is_written_is_read_back(frame: rules.Frame) -> None:
    line = rules.write_frame(frame)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert rules.read_frame(line) == frame


@given(st.binary(max_size=60) | anything.map(lambda value: json.dumps(value).encode()))
def test_no_line_raises(line: bytes) -> None:
    assert isinstance(rules.read_frame(line), rules.UnknownFrame | rules.BadLine)


@given(frames, st.data())
def test_a_frame_with_any_member_replaced_does_not_raise(
    frame: rules.Frame, data: st.DataObject
) -> None:
    written = rules.frame_dict(frame)
    target: Any = written
    while True:
        name = data.draw(st.sampled_from(sorted(target)))
        if not isinstance(target[name], dict) or not target[name] or data.draw(st.booleans()):
            break
        target = target[name]
    target[name] = data.draw(anything)
    rules.read_frame(canonical.encode(written))


@pytest.mark.parametrize("name", TYPES)
def test_a_frame_without_its_members_is_a_bad_line_or_has_defaults(name: str) -> None:
    read = rules.read_frame(json.dumps({"type": name}))
    assert isinstance(read, rules.BadLine), read


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("[]", "object"),
        ("3", "object"),
        ("{", "byte"),
        ('{"type":"hello","type":"hello"}', "twice"),
        ('{"type":7}', "text"),
        ('{"type":"inbound_ack","bufferId":""}', "characters"),
        ('{"type":"inbound_ack","bufferId":7}', "text"),
        ('{"type":"hello","platform":"x","session_keys":"other"}', "hermes or scoped"),
        ('{"type":"inbound","event":{"text":5}}', "text"),
        ('{"type":"passthrough_forward","forward":{"bodyB64":"*"}}', "base64"),
        ('{"type":"passthrough_forward","forward":{"bodyB64":"é"}}', "base64"),
        ('{"type":"passthrough_forward","forward":{"headers":[["a"]]}}', "pairs"),
        ('{"type":"passthrough_forward","forward":{"headers":7}}', "pairs"),
        ("[" * 100_000, "byte"),
    ],
)
def test_a_bad_line_says_why(line: str, why: str) -> None:
    read = rules.read_frame(line)
    assert isinstance(read, rules.BadLine)
    assert why in read.why


def test_an_unknown_type_is_told_apart_from_a_bad_line() -> None:
    assert rules.read_frame('{"type":"teleport"}') == rules.UnknownFrame("teleport")


@pytest.mark.parametrize(
    ("action", "why"),
    [
        ({"op": "dance"}, "unsupported op: dance"),
        ({}, "op"),
        (None, "op"),
        ({"op": "send", "chat_id": "c"}, "content"),
        ({"op": "send", "chat_id": "", "content": "x"}, "/chat_id"),
        ({"op": "edit", "chat_id": "c", "content": "x"}, "message_id"),
        ({"op": "send", "chat_id": "c", "content": "x", "metadata": []}, "/metadata"),
    ],
)
def test_a_bad_action_still_has_its_request_to_answer(action: Any, why: str) -> None:
    line = json.dumps({"type": "outbound", "requestId": "r1", "action": action})
    read = rules.read_frame(line)
    assert isinstance(read, rules.Outbound)
    assert read.request_id == "r1"
    assert isinstance(read.action, rules.BadAction)
    assert why in read.action.why


def test_trust_is_never_read_from_the_wire() -> None:
    source = {"platform": "discord", "chat_id": "c", "is_bot": True, "guild_id": "g"}
    read = rules.SessionSource.from_dict(source)
    assert read == rules.SessionSource("discord", "c")


def test_a_descriptor_without_a_length_has_the_default_one() -> None:
    given = rules.Descriptor("x", "X", 2000, False, True, True, "plain", "chars").to_dict()
    assert rules.Descriptor.from_dict(given | {"max_message_length": 0}).max_message_length == 4096


def test_a_slash_command_says_its_options_too() -> None:
    body = {
        "guild_id": "g",
        "data": {"name": "ask", "options": [{"name": "about", "value": "the sea"}, {"value": 3}]},
    }
    forward = rules.PassthroughForward("discord", body=canonical.encode(body))
    event = rules.interaction_event(forward)
    assert event is not None
    assert event.text == "ask the sea 3"


@given(anything)
def test_no_interaction_raises(value: Any) -> None:
    rules.interaction_event(rules.PassthroughForward("discord", body=canonical.encode(value)))
