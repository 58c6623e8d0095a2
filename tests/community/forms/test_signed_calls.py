"""Requests and answers: what is signed is what is read, and nothing can be left out or moved."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.community.errors import Code, CommunityError
from accord.community.rules import SignedRequest, wire
from accord.kernel.clock import format_time
from accord.kernel.signing import SigningKey

KEY = SigningKey.from_seed(b"1" * 32)
SERVER = SigningKey.from_seed(b"2" * 32)
STRANGER = SigningKey.from_seed(b"3" * 32)
COMMUNITY = SigningKey.from_seed(b"c" * 32)
NOW = 1_780_000_000.0
REQUEST_ID = "01HXR0000000000000000000AC"
BODY = {"params": {}, "input": {"text": "Grüße"}}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)


def signed(body: Any = BODY, *, to: str | None = SERVER.id) -> SignedRequest:
    return wire.sign_request(
        KEY,
        capability="llm.chat",
        version="1.0",
        request_id=REQUEST_ID,
        community=COMMUNITY.id,
        timestamp=format_time(NOW),
        body=body,
        to=to,
    )


def asked(**changes: Any) -> SignedRequest:
    members: dict[str, Any] = {
        "path": "/pubsub/v1/subscribe",
        "query": "topic=market",
        "request_id": REQUEST_ID,
        "community": COMMUNITY.id,
        "timestamp": format_time(NOW),
        "to": SERVER.id,
    }
    return wire.sign_path_request(KEY, **members | changes)


def raw(named: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in named.items()]


def code_of(function: Any, *args: Any, **named: Any) -> Code:
    with pytest.raises(CommunityError) as caught:
        function(*args, **named)
    return caught.value.code


@given(json_values)
def test_what_is_signed_is_read_back(body: Any) -> None:
    request = signed(body)
    read = wire.read_request(raw(request.headers), body)
    assert read == request
    assert read.digest == request.digest
    wire.verify_request(read, SERVER.id)


def test_the_headers_have_the_names_of_the_specification() -> None:
    assert list(signed().headers) == [
        "X-HearthNet-Capability",
        "X-HearthNet-Capability-Version",
        "X-HearthNet-Request-Id",
        "X-HearthNet-From",
        "X-HearthNet-To",
        "X-HearthNet-Community",
        "X-HearthNet-Timestamp",
        "X-HearthNet-Signature",
    ]


@pytest.mark.parametrize("name", list(signed().headers))
def test_each_header_is_bound(name: str) -> None:
    elsewhere = {
        wire.CAPABILITY: "llm.complete",
        wire.VERSION: "1.1",
        wire.REQUEST_ID: "01HXR0000000000000000000AD",
        wire.FROM: STRANGER.id,
        wire.TO: STRANGER.id,
        wire.COMMUNITY: STRANGER.id,
        wire.TIMESTAMP: format_time(NOW + 1),
        wire.SIGNATURE: asked().headers[wire.SIGNATURE],
    }
    changed = signed().headers | {name: elsewhere[name]}
    read = wire.read_request(raw(changed), BODY)
    assert code_of(wire.verify_request, read, SERVER.id) is Code.INVALID_SIGNATURE


@pytest.mark.parametrize("name", list(signed().headers))
def test_each_header_comes_once_in_its_one_form(name: str) -> None:
    whole = signed().headers
    missing = {each: value for each, value in whole.items() if each != name}
    if name == wire.TO:
        read = wire.read_request(raw(missing), BODY)
        assert code_of(wire.verify_request, read, SERVER.id) is Code.INVALID_SIGNATURE
    else:
        assert code_of(wire.read_request, raw(missing), BODY) is Code.BAD_REQUEST
    twice = [*raw(whole), (name.lower().encode(), whole[name].encode())]
    assert code_of(wire.read_request, twice, BODY) is Code.BAD_REQUEST
    wrong = Code.INVALID_SIGNATURE if name == wire.SIGNATURE else Code.BAD_REQUEST
    for value in ("", " ", whole[name] + " ", whole[name] + "=", "é"):
        assert code_of(wire.read_request, raw(whole | {name: value}), BODY) is wrong


@given(st.lists(st.tuples(st.sampled_from(list(signed().headers)), st.binary(max_size=60))))
def test_no_headers_are_more_than_refused(found: list[tuple[str, bytes]]) -> None:
    with pytest.raises(CommunityError):
        wire.read_request([(name.encode(), value) for name, value in found], BODY)


def test_a_call_for_another_node_is_refused() -> None:
    read = wire.read_request(raw(signed(to=STRANGER.id).headers), BODY)
    assert code_of(wire.verify_request, read, SERVER.id) is Code.INVALID_SIGNATURE


def test_a_caller_may_leave_out_whom_it_means() -> None:
    read = wire.read_request(raw(signed(to=None).headers), BODY)
    assert read.to is None
    wire.verify_request(read, SERVER.id)


def test_another_body_is_refused() -> None:
    read = wire.read_request(raw(signed().headers), {**BODY, "params": {"model": "x"}})
    assert code_of(wire.verify_request, read, SERVER.id) is Code.INVALID_SIGNATURE


def test_bytes_that_are_not_json_are_signed_by_their_digest() -> None:
    request = asked(path="/sync/v1/reconcile", query="", body=wire.opaque(b"\x01\x02"))
    read = wire.read_path_request(
        raw(request.headers),
        path="/sync/v1/reconcile",
        query="",
        body=wire.opaque(b"\x01\x02"),
    )
    wire.verify_request(read, SERVER.id)
    other = wire.read_path_request(
        raw(request.headers),
        path="/sync/v1/reconcile",
        query="",
        body=wire.opaque(b"\x01\x03"),
    )
    assert code_of(wire.verify_request, other, SERVER.id) is Code.INVALID_SIGNATURE


def test_a_signed_get_is_bound_to_its_path_and_query() -> None:
    request = asked()
    named = raw(request.headers)
    read = wire.read_path_request(named, path="/pubsub/v1/subscribe", query="topic=market")
    assert (read, read.capability) == (request, None)
    wire.verify_request(read, SERVER.id)
    for path, query in (("/pubsub/v1/subscribe", "topic=chat"), ("/bus/v1/ack", "topic=market")):
        moved = wire.read_path_request(named, path=path, query=query)
        assert code_of(wire.verify_request, moved, SERVER.id) is Code.INVALID_SIGNATURE
    with_body = wire.read_path_request(
        named, path="/pubsub/v1/subscribe", query="topic=market", body=None
    )
    assert code_of(wire.verify_request, with_body, SERVER.id) is Code.INVALID_SIGNATURE


def test_a_call_is_no_path_request_and_the_other_way_round() -> None:
    assert code_of(wire.read_request, raw(asked().headers), {}) is Code.BAD_REQUEST
    assert (
        code_of(wire.read_path_request, raw(signed().headers), path="/", query="")
        is Code.BAD_REQUEST
    )


@pytest.mark.parametrize(
    "change",
    [
        {"request_id": "lower"},
        {"community": "x"},
        {"timestamp": "now"},
        {"to": "x"},
        {"body": float("nan")},
        {"body": "\ud800"},
        {"path": "\ud800"},
    ],
)
def test_nothing_is_signed_that_would_not_be_read(change: dict[str, Any]) -> None:
    assert code_of(asked, **change) is Code.BAD_REQUEST


@pytest.mark.parametrize("body_depth", [126, 127, 128, 1000])
def test_a_body_as_deep_as_json_may_be_is_signed_or_refused(body_depth: int) -> None:
    body: Any = 0
    for _ in range(body_depth):
        body = [body]
    try:
        signed(body)
    except CommunityError as error:
        assert error.code is Code.BAD_REQUEST


@pytest.mark.parametrize(
    ("off", "fresh"), [(0, True), (60, True), (-60, True), (61, False), (-61, False)]
)
def test_freshness_is_a_minute_either_way(off: int, fresh: bool) -> None:
    if fresh:
        wire.check_fresh(format_time(NOW), NOW + off)
    else:
        assert code_of(wire.check_fresh, format_time(NOW), NOW + off) is Code.EXPIRED


def answered(request: SignedRequest, **changes: Any) -> dict[str, str]:
    members: dict[str, Any] = {
        "request_id": request.request_id,
        "request_digest": request.digest,
        "to": request.caller,
        "timestamp": format_time(NOW),
        "status": 200,
        "body": {"output": 1},
    }
    return wire.sign_response(SERVER, **members | changes)


def verify(request: SignedRequest, named: dict[str, str], **changes: Any) -> None:
    members: dict[str, Any] = {
        "server": SERVER.id,
        "status": 200,
        "body": {"output": 1},
        "now": NOW,
    }
    wire.verify_response(raw(named), request=request, **members | changes)


def test_an_answer_is_verified() -> None:
    verify(signed(), answered(signed()))


@pytest.mark.parametrize(
    "change",
    [{"server": STRANGER.id}, {"status": 201}, {"body": {"output": 2}}],
)
def test_everything_in_an_answer_is_bound(change: dict[str, Any]) -> None:
    assert code_of(verify, signed(), answered(signed()), **change) is Code.INVALID_SIGNATURE


def test_an_answer_to_another_request_is_refused() -> None:
    other = signed({"params": {}, "input": {}})
    assert code_of(verify, other, answered(signed())) is Code.INVALID_SIGNATURE


def test_an_answer_for_somebody_else_is_refused() -> None:
    named = answered(signed(), to=STRANGER.id)
    assert code_of(verify, signed(), named) is Code.INVALID_SIGNATURE


def test_an_old_answer_is_refused() -> None:
    assert code_of(verify, signed(), answered(signed()), now=NOW + 61) is Code.EXPIRED


@pytest.mark.parametrize("name", list(answered(signed())))
def test_an_answer_without_a_header_is_not_signed(name: str) -> None:
    named = answered(signed())
    del named[name]
    assert code_of(verify, signed(), named) is Code.INVALID_SIGNATURE


def test_a_refusal_may_leave_open_what_the_server_could_not_read() -> None:
    blind = answered(signed(), request_digest=None, to=None, status=400)
    verify(signed(), blind, status=400)
    success = answered(signed(), request_digest=None, to=None)
    assert code_of(verify, signed(), success) is Code.INVALID_SIGNATURE
