"""What may land of each stream: everything the fold needs, nothing that anybody said."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.histories import HistoryWriter, hostile

from accord.community.rules import (
    Event,
    fold_events,
    parse_event,
    parse_signed_event,
    read_event,
    state_bytes,
    verify_event,
)
from accord.kernel import canonical, tokens
from accord.pipeline.errors import PipelineError
from accord.pipeline.rules import STREAMS, redaction

EVENTS = "community.events"
CALLS = "contracts.calls"
TEXT = "meet me at the old mill"


def town() -> tuple[HistoryWriter, Any, Any]:
    scribe = HistoryWriter(1, signed=True)
    ann, bob = scribe.pen("ann"), scribe.pen("bob")
    scribe.found(ann)
    scribe.admit(ann, bob)
    return scribe, ann, bob


def body_of(event: Event) -> str:
    return event.encode().decode()


def restored(event: Event) -> Event:
    """An event after its journey through the landing."""
    landed = redaction.redact(EVENTS, body_of(event))
    return redaction.restore_event(landed) or parse_event(landed.encode())


def call(**more: Any) -> str:
    body = {
        "at": "2026-05-26T08:14:22Z",
        "contract_id": "billing@v1",
        "digest": "a" * 43,
        "kind": "rpc",
        "surface": "Bills.List",
        "part": "input",
        "service": "billing",
        "caller": {"deployment": "shop", "contract_id": None, "digest": None},
        "request_id": "r1",
        "outcome": "ok",
        "error": None,
        "ms": 3,
    }
    return canonical.encode(body | more).decode()


def test_everything_but_chat_lands_byte_for_byte_and_stays_verifiable() -> None:
    scribe, ann, _ = town()
    scribe.post(ann)
    for event in scribe.events:
        landed = redaction.redact(EVENTS, body_of(event))
        assert landed == body_of(event)
        assert redaction.restore_event(landed) is None
        verify_event(*parse_signed_event(landed.encode()))


def test_clear_chat_lands_without_its_text_and_keeps_its_digest() -> None:
    scribe, ann, bob = town()
    files = [{"cid": "blake3:" + "0" * 64, "name": "map.png"}]
    data = {"client_id": "c1", "recipient": bob.id, "body": TEXT, "attachments": files}
    event = scribe.write(ann, "chat.message.sent", data)
    landed = redaction.redact(EVENTS, body_of(event))
    assert TEXT not in landed
    found = redaction.restore_event(landed)
    assert found is not None
    assert (found.digest, found.position, found.prev) == (event.digest, event.position, event.prev)
    assert found.data == data | {"body": ""}
    # Whoever has the text can put it back, and the signature holds.
    whole = found.payload() | {"data": {**found.data, "body": TEXT}}
    assert read_event(whole) == event


def test_a_sealed_message_lands_as_it_is() -> None:
    scribe, ann, bob = town()
    sealed = {
        "algorithm": "x25519-sealed",
        "to_recipient": "c2VhbGVk",
        "to_sender": "c2VhbGVk",
        "commit": "blake3:" + "0" * 64,
    }
    data = {"client_id": "c1", "recipient": bob.id, "sealed": sealed}
    event = scribe.write(ann, "chat.message.sent", data)
    assert redaction.redact(EVENTS, body_of(event)) == body_of(event)


@pytest.mark.parametrize(
    ("event_type", "version"), [("chat.group.said", 1), ("chat.message.sent", 2)]
)
def test_of_chat_that_is_not_understood_nothing_lands_but_its_envelope(
    event_type: str, version: int
) -> None:
    scribe, ann, _ = town()
    event = scribe.write(ann, event_type, {"lines": [TEXT]}, version=version)
    event = read_event(event.payload())
    landed = redaction.redact(EVENTS, body_of(event))
    assert TEXT not in landed
    found = redaction.restore_event(landed)
    assert found is not None
    assert (found.digest, found.data, found.author_seq) == (event.digest, {}, event.author_seq)


@pytest.mark.parametrize("seed", range(8))
def test_the_fold_of_what_landed_is_byte_identical(seed: int) -> None:
    community, events = hostile(random.Random(seed), 250, signed=True)
    # What is made without a signature has a made-up digest; what is read has its own.
    events = [read_event(event.payload()) for event in events]
    landed = [restored(event) for event in events]
    assert [event.digest for event in events] == [event.digest for event in landed]
    assert events != landed, "some of it is chat"
    before, after = (fold_events(each, community) for each in (events, landed))
    assert state_bytes(before.state) == state_bytes(after.state)


def test_only_what_an_exporter_redacts_is_taken_for_redacted() -> None:
    scribe, ann, bob = town()
    said = {"client_id": "c1", "recipient": bob.id, "body": TEXT}
    chat = scribe.write(ann, "chat.message.sent", said)
    post = scribe.post(ann)
    genuine = canonical.decode(redaction.redact(EVENTS, body_of(chat)))
    forged = [
        genuine | {"event": post.payload()},
        genuine | {"event": chat.payload()},
        genuine | {"event": scribe.events[0].payload()},
        genuine | {"more": 1},
        genuine | {"redacted": {"digest": "blake3:00", "rule": "chat.clear"}},
        genuine | {"redacted": {"digest": chat.hash, "rule": "chat.unknown"}},
        genuine | {"redacted": {"digest": 7, "rule": "chat.clear"}},
        genuine | {"redacted": None},
        {"event": genuine["event"]},
        genuine | {"event": {}},
    ]
    for value in forged:
        with pytest.raises(PipelineError):
            redaction.restore_event(canonical.encode(value).decode())
    exact = canonical.encode(genuine).decode()
    for broken in (exact + " ", exact[:-1], exact[:40], '{"event":{', exact.replace(":", ": ", 9)):
        if broken.startswith('{"event":{'):
            with pytest.raises(PipelineError):
                redaction.restore_event(broken)


@given(st.sampled_from(STREAMS), st.text(max_size=200))
def test_no_text_is_too_odd_for_any_stream(stream: str, text: str) -> None:
    landed = redaction.redact(stream, text)
    told = canonical.decode(landed)["withheld"]
    assert told["rule"] in (redaction.UNREADABLE, redaction.UNDESCRIBED)
    assert redaction.restore_event(landed) is None


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize(
    "body",
    [
        f'{{"text":"{TEXT}"}}',
        f'"{TEXT}"',
        f'{{"{TEXT}":1}}',
        f'{{"event_type":"chat.message.sent","data":{{"body":"{TEXT}"}}}}',
        f'{{"event_type":["{TEXT}"]}}',
        "[" * 100_000,
        f'"{TEXT * 1_000_000}"',
    ],
)
def test_what_no_schema_describes_is_withheld_whole(stream: str, body: str) -> None:
    landed = redaction.redact(stream, body)
    assert TEXT not in landed
    assert len(landed) < 200
    assert canonical.decode(landed)["withheld"]["bytes"] == len(body)


def test_a_call_lands_as_it_was_written() -> None:
    for body in (call(), call(payload={"max_tokens": 3, "key": "B flat", "sort_key": "name"})):
        assert redaction.redact(CALLS, body) == body
    spaced = call(payload={"n": 1}).replace(",", ", ")
    assert redaction.redact(CALLS, spaced) == spaced


@pytest.mark.parametrize(
    "payload",
    [
        {"password": "hunter2hunter2"},
        {"deep": [{"accessToken": "hunter2hunter2"}]},
        {"API_KEY": ["hunter2hunter2"]},
        {"private-key": "hunter2hunter2"},
        "Authorization: Bearer hunter2hunter2",
        ["postgresql://user:hunter2hunter2@host/db"],
        {"note": "-----BEGIN OPENSSH PRIVATE KEY-----\nhunter2hunter2"},
        {"note": f"eyJhbGciOiJI.{'hunter2hunter2' * 2}.c2lnbmF0dXJl"},
        {"note": tokens.make("gateway", "hunter2hunter2", 1_700_000_000)},
    ],
)
def test_a_payload_with_a_secret_stays_out_and_the_call_lands(payload: Any) -> None:
    landed = redaction.redact(CALLS, call(payload=payload))
    assert landed == call()


def test_looking_for_secrets_takes_linear_time() -> None:
    for piece in ("-eyJ", "bearer ", "a://a:", "eyJaaaaaaaaa.", "-----BEGIN ", "aA"):
        body = call(payload={piece * 100: piece * 300_000})
        redaction.redact(CALLS, body)
