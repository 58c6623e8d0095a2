"""The form of a call: headers once and well formed, a body that is a strict JSON object."""

from typing import Any

import pytest

from accord.community.errors import Code
from accord.community.rules import wire
from accord.kernel import canonical

BODY: dict[str, Any] = {"params": {}, "input": {"say": "hello"}}
NAMES = [
    wire.CAPABILITY,
    wire.VERSION,
    wire.REQUEST_ID,
    wire.FROM,
    wire.COMMUNITY,
    wire.TIMESTAMP,
    wire.SIGNATURE,
]


@pytest.mark.parametrize("name", NAMES)
async def test_a_missing_header_is_refused(stage: Any, name: str) -> None:
    request = stage.sign(BODY)
    named = {key: value for key, value in request.headers.items() if key != name}
    answer = await stage.send(None, canonical.encode(BODY), headers=named)
    stage.refused(answer, "headers", Code.BAD_REQUEST)


@pytest.mark.parametrize("name", [*NAMES, wire.TO])
async def test_a_repeated_header_is_refused(stage: Any, name: str) -> None:
    named = list(stage.sign(BODY).headers.items())
    named.append((name, dict(named)[name]))
    answer = await stage.send(None, canonical.encode(BODY), headers=named)
    stage.refused(answer, "headers", Code.BAD_REQUEST)


@pytest.mark.parametrize("name", [*NAMES, wire.TO])
async def test_a_malformed_header_is_refused(stage: Any, name: str) -> None:
    code = Code.INVALID_SIGNATURE if name == wire.SIGNATURE else Code.BAD_REQUEST
    for value in ("", "x", "ed25519:", "0", "2026-01-01", "é", "a" * 4000):
        named = [(each, text) for each, text in stage.sign(BODY).headers.items() if each != name]
        raw = [(each.encode(), text.encode()) for each, text in [*named, (name, value)]]
        answer = await stage.send(None, canonical.encode(BODY), headers=raw)
        stage.refused(answer, "headers", code)


async def test_headers_in_excess_are_refused(stage: Any) -> None:
    named = stage.sign(BODY).headers | {f"X-More-{number}": "1" for number in range(64)}
    answer = await stage.send(None, canonical.encode(BODY), headers=named)
    stage.refused(answer, "headers", Code.BAD_REQUEST)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b'"text"', b"1", b'{"a":1,"a":2}', b"\xff", b"[" * 100_000],
)
async def test_a_body_that_is_not_a_strict_json_object_is_refused(
    stage: Any, content: bytes
) -> None:
    answer = await stage.send(stage.sign(BODY), content)
    stage.refused(answer, "headers", Code.BAD_REQUEST)
