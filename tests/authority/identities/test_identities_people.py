"""Who can log in, and how."""

from typing import Any

import pytest
from sqlalchemy import Connection

from accord.authority.identities import hash_password, verify_password
from accord.authority.rules import AuthorityError, Code
from accord.authority.tables import entry_links, people, visits

WORDS = "correct horse battery"


async def test_a_name_is_taken_however_it_is_written(house: Any) -> None:
    ann = await house.person("Ann")
    for name in ("Ann", "ANN", "\uff41\uff4e\uff4e"):
        with pytest.raises(AuthorityError) as caught:
            await house.person(name)
        assert caught.value.code is Code.CONFLICT
    assert await house.identities.people.find("aNN") == ann
    assert await house.identities.people.find(ann.id) == ann


@pytest.mark.parametrize("name", ["", " Ann", "A\nnn", "A\0nn", "x" * 101, "\ud800"])
async def test_what_cannot_be_a_name_is_refused(house: Any, name: str) -> None:
    with pytest.raises(AuthorityError) as caught:
        await house.person(name)
    assert caught.value.code is Code.BAD_REQUEST
    with pytest.raises(AuthorityError) as caught:
        await house.identities.people.find(name)
    assert caught.value.code is Code.NOT_FOUND
    assert await house.identities.people.all() == []


async def test_a_password_lets_in_whoever_knows_it(house: Any) -> None:
    ann = await house.person()
    login = house.identities.login
    await login.set_password(ann.id, WORDS)
    assert (await login.by_password("ann", WORDS)).id == ann.id
    for name, password in (("Ann", "wrong horse battery"), ("Bob", WORDS), ("A\0", "")):
        with pytest.raises(AuthorityError) as caught:
            await login.by_password(name, password)
        assert caught.value.code is Code.FORBIDDEN
        assert str(caught.value) == "the name or the password is wrong"


async def test_nobody_comes_in_without_a_password_or_while_shut_out(house: Any) -> None:
    ann = await house.person()
    login = house.identities.login
    with pytest.raises(AuthorityError):
        await login.by_password("Ann", "")
    await login.set_password(ann.id, WORDS)
    visit = await login.visit(ann)
    await house.identities.set_disabled(ann.id, True)
    with pytest.raises(AuthorityError):
        await login.by_password("Ann", WORDS)
    assert await login.visitor(visit) is None
    await house.identities.set_disabled(ann.id, False)
    assert await login.visitor(visit) is None


def test_a_password_is_too_short_or_kept_by_scrypt() -> None:
    with pytest.raises(AuthorityError) as caught:
        hash_password("short")
    assert caught.value.code is Code.BAD_REQUEST
    stored = hash_password("Übermut tut gut")
    assert stored.startswith("scrypt$15$8$1$")
    assert verify_password("U\u0308bermut tut gut", stored)
    assert not verify_password("ubermut tut gut", stored)
    assert not verify_password("", None)
    assert stored != hash_password("Übermut tut gut")


async def test_a_link_lets_in_once_and_not_for_ever(house: Any) -> None:
    ann = await house.person()
    login = house.identities.login
    first, _ = await login.link(ann.id)
    second, until = await login.link(ann.id)
    assert until > house.clock.now()
    assert await login.link_owner(first) is None
    assert await login.link_owner(second) == ann
    assert await login.by_link(second) == ann
    with pytest.raises(AuthorityError):
        await login.by_link(second)
    third, _ = await login.link(ann.id, seconds=60)
    house.clock.advance(60)
    with pytest.raises(AuthorityError):
        await login.by_link(third)


async def test_a_visit_ends_by_itself_by_leaving_and_by_a_new_password(house: Any) -> None:
    ann = await house.person()
    login = house.identities.login
    old, left, last = [await login.visit(ann) for _ in range(3)]
    await login.leave(left)
    assert await login.visitor(left) is None
    assert (await login.visitor(old)).id == ann.id
    await login.set_password(ann.id, WORDS)
    assert await login.visitor(old) is None
    assert await login.visitor(last) is None
    new = await login.visit(ann)
    house.clock.advance(12 * 3600)
    assert await login.visitor(new) is None
    assert await login.visitor(None) is None


async def test_a_person_has_twenty_browsers_at_most(house: Any) -> None:
    ann = await house.person()
    secrets = []
    for _ in range(22):
        secrets.append(await house.identities.login.visit(ann))
        house.clock.advance(1)
    there = [await house.identities.login.visitor(each) is not None for each in secrets]
    assert there == [False] * 2 + [True] * 20


async def test_no_secret_is_in_the_store(house: Any) -> None:
    ann = await house.person()
    login = house.identities.login
    await login.set_password(ann.id, WORDS)
    secrets = [WORDS, (await login.link(ann.id))[0], await login.visit(ann)]

    def everything(connection: Connection) -> str:
        tables = (people, entry_links, visits)
        return repr([connection.execute(table.select()).all() for table in tables])

    kept = await house.authority.store.read(everything)
    assert not any(secret in kept for secret in secrets)
