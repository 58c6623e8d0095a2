"""Capabilities: kept encrypted, found only by whose they are, gone when their provider says so."""

from typing import Any

import pytest
from pydantic import SecretStr

from accord.relay.connector import Capability, Housekeeping, Principal, tables, vault
from accord.relay.connector.retention import store_pass
from accord.relay.errors import RelayError
from accord.relay.rules import SessionRules

pytestmark = pytest.mark.parametrize("engine", ["sqlite", "postgres"])

MINE = Principal("t1", "a1", "gw", "secret")
VALUE = "interaction-t0ken"


def capability(half: Any, value: str = VALUE, **given: Any) -> Capability:
    base = {
        "tenant": "t1",
        "instance": "a1",
        "platform": "chat",
        "scope_id": "g1",
        "session_key": "k1",
        "alias": "k1-alias",
        "kind": "token",
        "message_id": "m1",
        "expires_at": int(half.clock.now() * 1000) + 900_000,
    }
    return Capability(value=SecretStr(value), **{**base, **given})


async def keep(half: Any, *capabilities: Capability) -> None:
    await half.store.write(lambda c: half.directory.vault.bind(c, capabilities))


async def find(half: Any, who: Principal = MINE, **given: Any) -> str | None:
    query = {"session_key": "k1", "kind": "token", **given}
    found = await half.directory.vault.resolve(who, **query)
    return None if found is None else found.get_secret_value()


async def test_it_is_found_by_either_key_and_by_nobody_else(half: Any) -> None:
    await keep(half, capability(half))
    assert await find(half) == VALUE
    assert await find(half, session_key="k1-alias") == VALUE
    for stranger in (
        Principal("t2", "a1", "gw", "secret"),
        Principal("t1", "a2", "gw", "secret"),
        Principal("t2", "a2", "gw", "managed"),
    ):
        assert await find(half, stranger) is None
    others: list[dict[str, Any]] = [
        {"session_key": "k2"},
        {"session_key": ""},
        {"session_key": "k\x00"},
        {"kind": "other"},
        {"platform": "else"},
        {"scope_id": "g2"},
        {"message_id": "m2"},
        {"message_id": "m\x00"},
    ]
    for given in others:
        assert await find(half, **given) is None
    assert await find(half, platform="chat", scope_id="g1", message_id="m1") == VALUE


async def test_the_newest_is_taken_unless_a_message_selects(half: Any) -> None:
    await keep(half, capability(half, "one", message_id="m1"))
    await keep(half, capability(half, "two", message_id="m2"))
    half.clock.advance(1)
    await keep(half, capability(half, "three", message_id="m3", alias=None))
    assert await find(half) == "three"
    assert await find(half, session_key="k1-alias") == "two"
    assert await find(half, message_id="m1") == "one"


async def test_the_chat_of_a_capability_is_known_as_long_as_it_is_stored(half: Any) -> None:
    vault, principal = half.directory.vault, await half.principal()
    told = {"principal": principal, "kind": "chat.token"}
    soon = int(half.clock.now() * 1000) + 10_000
    await keep(half, capability(half, chat_id="c1", message_id="m1", expires_at=soon))
    half.clock.advance(1)
    await keep(half, capability(half, chat_id="c2", message_id="m2", expires_at=soon))
    kind = (await half.rows(tables.vault))[0]["kind"]
    told["kind"] = kind
    assert await vault.find_chat(session_key="k1", **told) == "c2"
    assert await vault.find_chat(session_key="k1-alias", message_id="m1", **told) == "c1"
    half.clock.advance(3600)
    assert await vault.find_chat(session_key="k1", **told) == "c2"
    for other in ({"session_key": "k2"}, {"session_key": "k1", "message_id": "m9"}):
        assert await vault.find_chat(**other, **told) is None
    assert await vault.find_chat(session_key="k\x00", **told) is None
    other = await half.principal("b1", "t2")
    assert await vault.find_chat(other, session_key="k1", kind=kind) is None


async def test_it_ends_when_its_provider_says_so(half: Any) -> None:
    await keep(half, capability(half))
    soon = int(half.clock.now() * 1000) + 10_000
    await keep(half, capability(half, "brief", expires_at=soon))
    assert await find(half) == "brief"
    half.clock.advance(10)
    assert await find(half) == VALUE
    assert await half.directory.vault.purge() == 1
    half.clock.advance(900)
    await Housekeeping(half.directory).tidy()
    assert await half.rows(tables.vault) == []


async def test_what_expired_stays_while_the_clock_is_not_trusted(half: Any) -> None:
    await keep(half, capability(half))
    half.clock.advance(100 * 86_400)
    past = half.clock.now() - 50 * 86_400
    await half.store.write(lambda c: store_pass(c, past))
    keeping = Housekeeping(half.directory)
    await keeping.tidy()
    assert len(await half.rows(tables.vault)) == 1
    assert await find(half) is None, "it is not valid all the same"
    await half.store.write(lambda c: store_pass(c, half.clock.now()))
    await keeping.tidy()
    assert await half.rows(tables.vault) == []


async def test_its_value_is_nowhere_to_be_read(half: Any) -> None:
    kept = capability(half)
    await keep(half, kept)
    assert VALUE not in repr(kept)
    assert VALUE not in str(kept)
    assert VALUE.encode() not in b"".join(row["box"] for row in await half.rows(tables.vault))
    assert VALUE not in repr(await half.rows(tables.vault))
    assert not any(VALUE in note for note in await half.journal())


async def test_a_row_moved_to_another_tenant_does_not_open(half: Any) -> None:
    await keep(half, capability(half))
    await half.store.write(
        lambda c: c.execute(tables.vault.update().values(tenant="t2", instance="b1"))
    )
    with pytest.raises(RelayError) as refused:
        await find(half, Principal("t2", "b1", "gw", "secret"))
    assert VALUE not in str(refused.value)


async def test_keeping_none_writes_nothing_and_many_are_kept_at_once(half: Any) -> None:
    await keep(half)
    await keep(half, *(capability(half, f"v{n}", session_key=f"k{n}") for n in range(50)))
    assert await find(half, session_key="k49") == "v49"


async def test_an_entry_holds_back_a_change_of_dialect(half: Any) -> None:
    await half.enrol("a1")
    assert await half.directory.choose_sessions("a1", SessionRules("hermes"), lambda _: True)
    await keep(half, capability(half))
    assert not await half.directory.choose_sessions("a1", SessionRules("scoped"), lambda _: True)
    half.clock.advance(900)
    assert await half.directory.choose_sessions("a1", SessionRules("scoped"), lambda _: True)


async def test_everything_is_encrypted_anew_after_the_key_changed(half: Any) -> None:
    credentials = await half.enrol("a1")
    await keep(half, *(capability(half, f"v{n}", session_key=f"k{n}") for n in range(5)))
    old = half.keyring.key_id
    assert await half.control.rotate_key() == 7
    assert await half.control.rotate_key() == 7
    boxes = [
        row["key_id"]
        for table in (tables.tenants, tables.gateway_secrets, tables.vault)
        for row in await half.rows(table)
    ]
    assert set(boxes) == {half.keyring.key_id} != {old}
    assert await half.control.forget_keys() == 2
    assert await find(half, session_key="k3") == "v3"
    half.directory.cache._known.clear()
    assert await half.directory.authenticate(half.bearer(credentials))


async def test_a_rotation_that_was_cut_off_is_finished_later(
    half: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials = await half.enrol("a1")
    await keep(half, *(capability(half, f"v{n}", session_key=f"k{n}") for n in range(5)))
    real, calls = vault._reencrypt_rows, []

    def dies(*given: Any) -> int:
        calls.append(1)
        if len(calls) > 2:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(vault, "_AT_ONCE", 1)
    monkeypatch.setattr(vault, "_reencrypt_rows", dies)
    with pytest.raises(KeyboardInterrupt):
        await half.control.rotate_key()
    monkeypatch.setattr(vault, "_reencrypt_rows", real)
    status = await half.control.key_status()
    assert 0 < status.old_boxes < 7
    assert await find(half, session_key="k3") == "v3"
    half.directory.cache._known.clear()
    assert await half.directory.authenticate(half.bearer(credentials))
    assert await half.control.rotate_key(with_new_key=False) == status.old_boxes
    assert await half.control.forget_keys() == 1
    assert await find(half, session_key="k3") == "v3"


async def test_old_keys_are_not_forgotten_while_something_needs_them(half: Any) -> None:
    await half.enrol("a1")
    half.keyring.rotate()
    with pytest.raises(RelayError, match="2 secrets"):
        await half.control.forget_keys()
