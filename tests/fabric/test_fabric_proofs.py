"""Signed requests, the replay window, resolved callers and errors: the pure side of a call."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.contracts.session_proof import session_key
from accord.fabric import (
    Caller,
    FabricError,
    RemoteError,
    ReplayWindow,
    RequestSignature,
    UnauthorizedError,
    UnavailableError,
    ValidationError,
    read_error,
    write_error,
)
from accord.fabric.requests import Callers
from accord.fabric.rules import proofs
from accord.kernel import canonical
from accord.kernel.signing import SigningKey
from accord.testing import VirtualClock, run_virtual

KEY = SigningKey.from_seed(b"k" * 32)
SESSION = session_key(KEY)


def test_proofs_are_those_of_existing_implementations(vectors: Callable[[str], Any]) -> None:
    for case in vectors("contracts/auth-proof.json"):
        key = SigningKey.from_seed(canonical.decode_base64url(case["seed"]))
        known = case["rpcProof"]
        data = known["payload"].encode()
        made = proofs.sign(
            key, session_key(key), known["subject"], data, known["iat"], known["requestId"]
        )
        assert made[proofs.PROOF] == known["proof"]
        proofs.verify(proofs.read(made), known["subject"], data, known["iat"])


@given(
    st.binary(max_size=50), st.text("abc.", min_size=1, max_size=20), st.floats(-30, 30, width=32)
)
def test_a_request_that_was_signed_is_verified(data: bytes, subject: str, drift: float) -> None:
    headers = proofs.sign(KEY, SESSION, subject, data, 1_000_000, "one")
    proofs.verify(proofs.read(headers), subject, data, 1_000_000 + drift)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            name: st.text(max_size=60)
            for name in (proofs.SESSION, proofs.PROOF, proofs.IAT, proofs.REQUEST_ID)
        },
    )
)
def test_any_headers_are_refused_or_read_but_never_break(headers: dict[str, str]) -> None:
    signed = proofs.sign(KEY, SESSION, "s", b"", 1_000_000, "one")
    for given_headers in (headers, signed | headers):
        try:
            read = proofs.read(given_headers)
            proofs.verify(read, "s", b"", 1_000_000)
        except UnauthorizedError:
            continue
        assert given_headers == signed


@pytest.mark.parametrize("away", [-31, 31, 1e9])
def test_a_proof_of_another_time_is_refused(away: float) -> None:
    headers = proofs.sign(KEY, SESSION, "s", b"", 1_000_000, "one")
    with pytest.raises(UnauthorizedError, match="last 30 seconds"):
        proofs.verify(proofs.read(headers), "s", b"", 1_000_000 + away)


@pytest.mark.parametrize(
    "reply",
    ["", "_INBOX", f"_INBOX.{SESSION[:16]}", f"_INBOX.{SESSION[:15]}x.1", "rpc.v1.X", "_INBOX.>"],
)
def test_a_reply_outside_the_inbox_is_seen(reply: str) -> None:
    assert not proofs.is_own_inbox(SESSION, reply)
    assert not proofs.is_own_inbox("x", reply)
    assert proofs.is_own_inbox(SESSION, f"_INBOX.{SESSION[:16]}.a.1")


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 5), st.integers(-30, 30), st.floats(0, 40)),
        max_size=60,
    )
)
def test_no_request_is_taken_twice_while_its_proof_is_fresh(
    requests: list[tuple[str, int, int, float]],
) -> None:
    replay, now = ReplayWindow(), 1_000_000.0
    taken: set[tuple[str, str, int]] = set()
    for session, number, drift, pause in requests:
        now += pause
        signed = RequestSignature(session, f"{number}", int(now) + drift, "")
        for known in taken:
            fresh = abs(now - known[2]) <= proofs.FRESH_SECONDS
            if fresh:
                again = RequestSignature(known[0], known[1], known[2], "")
                with pytest.raises(UnauthorizedError):
                    replay.claim(again, now)
        try:
            replay.claim(signed, now)
        except UnauthorizedError:
            continue
        taken.add((session, f"{number}", signed.iat))


def test_the_window_has_an_end_and_a_limit() -> None:
    replay = ReplayWindow(most=3)
    for number in range(3):
        replay.claim(RequestSignature("s", str(number), 0, ""), 0.0)
    with pytest.raises(UnavailableError):
        replay.claim(RequestSignature("s", "3", 0, ""), 1.0)
    replay.claim(RequestSignature("s", "3", 0, ""), 100.0)
    assert len(replay) == 4
    replay.claim(RequestSignature("s", "3", 0, ""), 300.0)
    assert len(replay) == 1


def test_a_caller_is_asked_for_again_when_time_has_passed() -> None:
    clock, asked = VirtualClock(), []

    async def resolve(session: str) -> Caller:
        asked.append(session)
        return Caller(session, "person", "ada", expires_at=clock.now() + 50)

    async def main() -> None:
        callers = Callers(resolve, clock, seconds=30)
        await callers.resolve("s")
        await callers.resolve("s")
        assert len(asked) == 1
        clock.advance(31)
        assert callers.known("s") is None
        await callers.resolve("s")
        assert len(asked) == 2

    run_virtual(main(), clock=clock)


def test_a_caller_that_was_refused_is_asked_for_again_but_not_at_once() -> None:
    clock, asked = VirtualClock(), []

    async def resolve(session: str) -> Caller:
        asked.append(session)
        return Caller(session, "person", "ada")

    async def main() -> None:
        callers = Callers(resolve, clock, seconds=30)
        await callers.resolve("s")
        callers.recheck("s")
        await callers.resolve("s")
        assert len(asked) == 1
        clock.advance(2)
        callers.recheck("s")
        callers.recheck("nobody")
        await callers.resolve("s")
        assert len(asked) == 2

    run_virtual(main(), clock=clock)


def test_a_session_that_has_ended_is_refused_even_if_it_is_remembered() -> None:
    clock = VirtualClock()
    end = clock.now() + 5

    async def resolve(session: str) -> Caller:
        return Caller(session, "person", "ada", expires_at=end)

    async def main() -> None:
        callers = Callers(resolve, clock)
        await callers.resolve("s")
        clock.advance(6)
        with pytest.raises(UnauthorizedError, match="has ended"):
            await callers.resolve("s")

    run_virtual(main(), clock=clock)


def test_an_answer_from_before_a_revocation_is_not_remembered() -> None:
    clock = VirtualClock()
    release = asyncio.Event()

    async def resolve(session: str) -> Caller:
        await release.wait()
        return Caller(session, "person", "ada")

    async def main() -> None:
        callers = Callers(resolve, clock)
        asking = asyncio.create_task(callers.resolve("s"))
        await asyncio.sleep(0)
        callers.forget("s")
        release.set()
        await asking
        assert callers.known("s") is None

    run_virtual(main(), clock=clock)


def test_ever_new_keys_do_not_flood_the_authority() -> None:
    clock, asked = VirtualClock(), []
    release = asyncio.Event()

    async def resolve(session: str) -> Caller:
        asked.append(session)
        await release.wait()
        raise UnauthorizedError("nobody's")

    async def main() -> None:
        callers = Callers(resolve, clock)
        asking = [asyncio.create_task(callers.resolve(str(number))) for number in range(1000)]
        await asyncio.sleep(1)
        release.set()
        results = await asyncio.gather(*asking, return_exceptions=True)
        kinds = {type(result) for result in results}
        assert kinds == {UnauthorizedError, UnavailableError}
        assert len(asked) == 200

    run_virtual(main(), clock=clock)


def test_only_as_many_sessions_are_remembered_as_may_be() -> None:
    clock = VirtualClock()

    async def resolve(session: str) -> Caller:
        return Caller(session, "person", "ada")

    async def main() -> None:
        callers = Callers(resolve, clock, most=2)
        for session in "abc":
            await callers.resolve(session)
        await asyncio.sleep(0)
        assert [callers.known(session) is None for session in "abc"] == [True, False, False]

    run_virtual(main(), clock=clock)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(st.text(max_size=20), st.text(max_size=20), st.dictionaries(st.text(), json_values))
def test_an_error_of_any_type_arrives_as_it_was_sent(
    kind: str, message: str, members: dict[str, Any]
) -> None:
    sent = RemoteError(kind, message, members)
    read = read_error(write_error(sent, "id"))
    assert read.type == kind
    assert read.id == "id"
    assert {**members, "type": kind, "message": message, "id": "id"} == read.body


@given(st.binary(max_size=200) | json_values.map(canonical.encode))
def test_whatever_comes_as_an_error_is_one(data: bytes) -> None:
    assert isinstance(read_error(data), FabricError)


def test_the_issues_of_a_payload_travel() -> None:
    issues = [{"path": "/id", "message": "is no text"}]
    read = read_error(write_error(ValidationError("no", issues=issues), "id"))
    assert isinstance(read, ValidationError)
    assert list(read.issues) == issues
