"""How a gateway gets its secret by an enrolment token."""

import asyncio
from typing import Any

import pytest

from accord.relay.connector import tables
from accord.relay.errors import Code, RelayError


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
async def test_a_token_makes_an_instance_with_a_secret_once(half: Any) -> None:
    token = await half.control.mint_token("t1", "a1", name="Ada")
    credentials = await half.control.enrol(token.token, "gw:1", "https://wake.example/up")
    assert (credentials.tenant, credentials.gateway_id) == ("t1", "gw:1")
    assert len(credentials.secret) >= 43
    [instance] = await half.control.instances()
    assert (instance.name, instance.origin, instance.live) == ("Ada", "enrolled", True)
    assert instance.wake_url == "https://wake.example/up"
    with pytest.raises(RelayError) as again:
        await half.control.enrol(token.token, "gw:2")
    assert again.value.code is Code.UNAUTHORIZED


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
async def test_of_many_who_show_one_token_at_once_one_gets_the_secret(half: Any) -> None:
    token = await half.control.mint_token("t1", "a1")
    outcomes = await asyncio.gather(
        *(half.control.enrol(token.token, f"gw-{n}") for n in range(8)), return_exceptions=True
    )
    assert sum(not isinstance(each, BaseException) for each in outcomes) == 1
    assert len(await half.control.instances()) == 1


async def test_an_expired_token_is_refused_and_stays_unused(half: Any) -> None:
    token = await half.control.mint_token("t1", "a1", seconds=10)
    half.clock.advance(10)
    with pytest.raises(RelayError) as refused:
        await half.control.enrol(token.token, "gw")
    assert refused.value.code is Code.EXPIRED
    assert await half.control.instances() == []


async def test_an_unknown_token_is_refused(half: Any) -> None:
    with pytest.raises(RelayError) as refused:
        await half.control.enrol("enrol_nonsense", "gw")
    assert refused.value.code is Code.UNAUTHORIZED


async def test_a_gateway_id_of_another_instance_is_refused_and_the_token_not_spent(
    half: Any,
) -> None:
    await half.enrol("a1")
    token = await half.control.mint_token("t2", "a2")
    with pytest.raises(RelayError) as refused:
        await half.control.enrol(token.token, "gw-a1")
    assert refused.value.code is Code.CONFLICT
    assert (await half.control.enrol(token.token, "gw-a2")).tenant == "t2"


async def test_an_instance_of_one_tenant_cannot_be_minted_for_another(half: Any) -> None:
    await half.enrol("a1", "t1")
    with pytest.raises(RelayError) as refused:
        await half.control.mint_token("t2", "a1")
    assert refused.value.code is Code.CONFLICT


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
async def test_enrolling_anew_ends_the_old_secret(half: Any) -> None:
    old = await half.enrol("a1")
    assert await half.directory.authenticate(half.bearer(old))
    new = await half.enrol("a1")
    assert new.secret != old.secret
    with pytest.raises(RelayError):
        await half.directory.authenticate(half.bearer(old))
    assert (await half.directory.authenticate(half.bearer(new))).instance == "a1"


async def test_a_wake_url_that_could_not_be_poked_is_refused(half: Any) -> None:
    token = await half.control.mint_token("t1", "a1")
    for url in (
        "http://wake.example/",
        "https://127.0.0.1/",
        "https://[::ffff:10.0.0.1]/",
        "https://user@wake.example/",
        "https://wake.example:22/",
        "nonsense",
    ):
        with pytest.raises(RelayError) as refused:
            await half.control.enrol(token.token, "gw", url)
        assert (refused.value.code, refused.value.where) == (Code.BAD_REQUEST, "wakeUrl")
    assert await half.control.instances() == []


async def test_no_secret_and_no_token_is_readable_in_the_store(half: Any) -> None:
    token = await half.control.mint_token("t1", "a1")
    credentials = await half.control.enrol(token.token, "gw")
    secret, key = credentials.secret, credentials.delivery_key
    kept = [repr(await half.rows(table)) for table in RELAY_TABLES] + await half.journal()
    for hidden in (token.token, secret, key):
        assert not any(hidden in each for each in kept)
    for shown in (repr(token), repr(credentials), repr(half.keyring)):
        assert not any(hidden in shown for hidden in (token.token, secret, key))


RELAY_TABLES = (tables.tenants, tables.instances, tables.gateway_secrets, tables.enrolments)


async def test_two_gateways_of_one_tenant_share_its_delivery_key_and_nothing_else(
    half: Any,
) -> None:
    one, two = await half.enrol("a1", "t1"), await half.enrol("a2", "t1")
    other = await half.enrol("a3", "t2")
    assert one.delivery_key == two.delivery_key != other.delivery_key
    assert len({one.secret, two.secret, other.secret}) == 3


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
async def test_an_id_that_cannot_be_kept_is_refused(half: Any) -> None:
    token = await half.control.mint_token("t", "a")
    for bad in ("", "x\x00y", "tab\t", "\ud800", "n" * 513):
        with pytest.raises(RelayError) as refused:
            await half.control.mint_token(bad, "a")
        assert refused.value.code is Code.BAD_REQUEST
        with pytest.raises(RelayError):
            await half.control.enrol(token.token, bad)
    for odd in ("ü", "a b", "'; DROP TABLE instances; --", "%", "n" * 512, "😀"):
        minted = await half.control.mint_token(odd, f"a {odd[:9]}")
        assert (await half.control.enrol(minted.token, odd)).tenant == odd


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
async def test_a_refusal_leaves_its_neighbours_in_the_commit_alone(half: Any) -> None:
    tokens = [await half.control.mint_token("t1", f"a{n}") for n in range(4)]
    outcomes = await asyncio.gather(
        half.control.enrol(tokens[0].token, "gw-0"),
        half.control.enrol("enrol_wrong", "gw-x"),
        half.control.enrol(tokens[1].token, "gw-0"),
        half.control.enrol(tokens[2].token, "gw-2"),
        return_exceptions=True,
    )
    assert [isinstance(each, RelayError) for each in outcomes] == [False, True, True, False]
    assert {each.instance for each in await half.control.instances()} == {"a0", "a2"}
