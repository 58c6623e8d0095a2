"""Who may open a socket, and what the others are told."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.kernel import canonical, tokens
from accord.relay.connector import ControlSettings, Principal, authentication, close_reason
from accord.relay.errors import RelayError
from accord.relay.rules import CloseReason


async def reason(half: Any, bearer: str | None) -> CloseReason:
    with pytest.raises(RelayError) as refused:
        await half.directory.authenticate(bearer)
    return close_reason(refused.value)


async def test_a_fresh_token_proves_the_stored_record(half: Any) -> None:
    credentials = await half.enrol("a1", "t1")
    for _ in range(2):
        principal = await half.directory.authenticate(half.bearer(credentials))
        assert principal == Principal("t1", "a1", "gw-a1", "secret")


async def test_an_id_with_colons_and_padded_base64_are_understood(half: Any) -> None:
    token = await half.control.mint_token("t1", "a1")
    credentials = await half.control.enrol(token.token, "gw:with:colons")
    bearer = half.bearer(credentials)
    padded = bearer + "=" * (-len(bearer) % 4)
    assert (await half.directory.authenticate(padded)).gateway_id == "gw:with:colons"


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
async def test_each_way_of_being_wrong_has_its_reason(half: Any) -> None:
    credentials = await half.enrol("a1")
    now = int(half.clock.now())

    def made(secret: str = credentials.secret, at: float = now, ttl: int = 300) -> str:
        return tokens.make("gw-a1", secret, at, ttl)

    assert await reason(half, None) is CloseReason.UNAUTHORIZED
    assert await reason(half, "") is CloseReason.UNAUTHORIZED
    assert await reason(half, "x" * 5000) is CloseReason.UNAUTHORIZED
    assert await reason(half, made("wrong")) is CloseReason.UNAUTHORIZED
    assert await reason(half, tokens.make("nobody", "s", now)) is CloseReason.UNAUTHORIZED
    assert await reason(half, tokens.make("x\x00", "s", now)) is CloseReason.UNAUTHORIZED
    assert await reason(half, made(at=now - 301)) is CloseReason.EXPIRED
    # Whoever does not hold the secret does not learn that a token would have expired.
    assert await reason(half, made("wrong", at=now - 301)) is CloseReason.UNAUTHORIZED
    assert await reason(half, made(ttl=0)) is CloseReason.UNAUTHORIZED
    assert await reason(half, made(ttl=601)) is CloseReason.UNAUTHORIZED
    assert await half.directory.authenticate(made(ttl=600))
    assert await half.directory.authenticate(made(at=now - 300))


async def test_a_revoked_gateway_learns_so_and_nobody_else_does(half: Any) -> None:
    credentials = await half.enrol("a1")
    await half.control.revoke("a1")
    assert await reason(half, half.bearer(credentials)) is CloseReason.REVOKED
    forged = tokens.make("gw-a1", "wrong", half.clock.now())
    assert await reason(half, forged) is CloseReason.UNAUTHORIZED


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
async def test_an_old_secret_is_good_for_the_grace_period(half: Any) -> None:
    old = await half.enrol("a1")
    assert await half.directory.authenticate(half.bearer(old))
    principal = await half.control.principal("a1")
    rotated = await half.control.rotate(principal)
    bearer = tokens.make("gw-a1", rotated.secret, half.clock.now())
    assert await half.directory.authenticate(bearer)
    half.clock.advance(3599)
    assert await half.directory.authenticate(half.bearer(old))
    half.clock.advance(1)
    assert await reason(half, half.bearer(old)) is CloseReason.UNAUTHORIZED
    assert await half.directory.authenticate(tokens.make("gw-a1", rotated.secret, half.clock.now()))
    again = await half.control.rotate(principal, grace_seconds=0)
    assert again.secret != rotated.secret
    assert rotated.secret not in repr(rotated)


class TestWithEndlessTokens:
    @pytest.fixture
    def settings(self) -> ControlSettings:
        return ControlSettings(endless_tokens=True)

    async def test_a_token_without_end_is_taken_where_configured(self, half: Any) -> None:
        credentials = await half.enrol("a1")
        assert await half.directory.authenticate(half.bearer(credentials, ttl=0))
        assert await half.directory.authenticate(half.bearer(credentials, ttl=10**6))


async def test_a_managed_token_opens_no_socket(half: Any) -> None:
    assert await reason(half, "a.b.c") is CloseReason.UNAUTHORIZED


@given(st.text(max_size=40), st.integers(0, 10**12))
def test_the_claimed_gateway_is_the_one_that_verifies(gateway: str, now: int) -> None:
    token = tokens.make(gateway.encode(errors="replace").decode(), "s", now)
    assert authentication.claimed_gateway(token) == tokens.verify(token, ["s"], now)


@given(st.one_of(st.text(max_size=60), st.binary(max_size=60).map(canonical.encode_base64url)))
def test_any_text_can_be_a_claim(text: str) -> None:
    authentication.claimed_gateway(text)
