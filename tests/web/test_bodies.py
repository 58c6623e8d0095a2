"""How much a request may send, how slowly, and what becomes of the rest."""

import asyncio
from collections.abc import Sequence

import pytest
from starlette.requests import Request
from starlette.types import Message

from accord.testing import run_virtual
from accord.web.incoming import BodyError, BodyLimits, read

SMALL = BodyLimits(most=8, seconds=10.0)


def request(
    pieces: Sequence[bytes], pause: float = 0.0, *, length: str = "", breaks: bool = False
) -> Request:
    """A request whose body comes in pieces, each after a pause."""
    rest = list(pieces)

    async def receive() -> Message:
        await asyncio.sleep(pause)
        if not rest and breaks:
            return {"type": "http.disconnect"}
        body = rest.pop(0) if rest else b""
        return {"type": "http.request", "body": body, "more_body": bool(rest) or breaks}

    headers = [(b"content-length", length.encode())] if length else []
    return Request({"type": "http", "method": "POST", "headers": headers}, receive)


def refused(given: Request, limits: BodyLimits = SMALL) -> int:
    async def work() -> int:
        with pytest.raises(BodyError) as caught:
            await read(given, limits)
        assert caught.value.mend
        return caught.value.status

    return run_virtual(work())


def test_a_body_within_its_limits_is_read_whole() -> None:
    assert run_virtual(read(request([b"1234", b"", b"5678"]), SMALL)) == b"12345678"
    assert run_virtual(read(request([]), SMALL)) == b""


def test_a_body_that_is_too_long_is_refused_before_it_is_kept() -> None:
    assert refused(request([b"1234", b"56789"])) == 413
    for length in ("9", "9" * 5000):
        # Nothing is read: what would come never comes.
        assert refused(request([b"x"], pause=1e9, length=length)) == 413


@pytest.mark.parametrize("length", ["-1", "x", "٣", "4"])
def test_a_length_that_says_little_is_not_believed(length: str) -> None:
    assert run_virtual(read(request([b"12345"], length="5"), SMALL)) == b"12345"
    assert refused(request([b"123456789"], length=length)) == 413


def test_a_body_that_trickles_has_one_deadline_however_often_a_piece_comes() -> None:
    assert refused(request([b"x"] * 1000, pause=4.0), BodyLimits(most=10_000, seconds=10.0)) == 408
    assert refused(request([b"x"], pause=11.0)) == 408
    assert run_virtual(read(request([b"x"] * 2, pause=4.0), SMALL)) == b"xx"


def test_bytes_earn_time_only_at_the_least_rate() -> None:
    upload = BodyLimits(most=10_000, seconds=10.0, rate=10)
    assert len(run_virtual(read(request([b"x" * 100] * 50, pause=9.0), upload))) == 5000
    assert refused(request([b"x" * 10] * 500, pause=9.0), upload) == 408


def test_a_body_that_breaks_off_is_said_to() -> None:
    assert refused(request([b"x"], breaks=True)) == 400
