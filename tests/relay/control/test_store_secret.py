"""The secret of a store: made once, the same for all processes, and encrypted like the others."""

import asyncio
from typing import Any

import pytest

from accord.relay.connector import Keyring, StoreSecret, tables
from accord.relay.errors import RelayError


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
async def test_processes_that_ask_at_once_get_the_same_pseudonyms(half: Any) -> None:
    secrets = [StoreSecret(half.keyring) for _ in range(8)]
    found = await asyncio.gather(*(each.load(half.store) for each in secrets))
    assert len({each.person("chat", "ann") for each in found}) == 1
    assert len(await half.rows(tables.store_secrets)) == 1


async def test_kinds_and_platforms_are_kept_apart(half: Any) -> None:
    names = await StoreSecret(half.keyring).load(half.store)
    made = [
        names.person("chat", "a"),
        names.chat("chat", "a"),
        names.event("chat", "a"),
        names.person("chata", ""),
        names.person("other", "a"),
        names.person("chat", "b"),
    ]
    assert len(set(made)) == len(made)
    assert "ann" not in repr(names)
    assert names.key.hex() not in repr(names)


async def test_it_is_not_readable_in_the_store_and_needs_its_key(half: Any) -> None:
    names = await StoreSecret(half.keyring).load(half.store)
    [row] = await half.rows(tables.store_secrets)
    assert names.key not in row["box"]
    with pytest.raises(RelayError):
        await StoreSecret(Keyring([b"x" * 32])).load(half.store)


async def test_it_outlives_the_rotation_of_the_key(half: Any) -> None:
    before = (await StoreSecret(half.keyring).load(half.store)).person("chat", "ann")
    await half.control.rotate_key(with_new_key=True)
    await half.control.forget_keys()
    assert (await StoreSecret(half.keyring).load(half.store)).person("chat", "ann") == before


async def test_who_only_tries_to_link_is_not_named_in_the_journal(half: Any) -> None:
    await half.enrol()
    caller = await half.control.principal("a1")
    code = (await half.control.link(caller)).code
    await half.say(f"/link {code}", "stranger-1")
    await half.say("no", "stranger-1")
    await half.say("/link WRONG-12345", "stranger-1")
    assert "stranger-1" not in str(await half.journal())
    code = (await half.control.link(caller)).code
    await half.say(f"/link {code}", "ann")
    await half.say("yes", "ann")
    assert "chat user ann" in str(await half.journal())
