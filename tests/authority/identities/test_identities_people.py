"""Who can log in, and how."""

import hashlib
from typing import Any

import pytest
from argon2 import PasswordHasher
from sqlalchemy import Connection, select, update

from accord.authority.identities import hash_password, verify_password
from accord.authority.rules import AuthorityError, Code
from accord.authority.tables import entry_links, people, visits
from accord.kernel import canonical

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


def test_a_password_is_too_short_or_kept_by_argon2() -> None:
    with pytest.raises(AuthorityError) as caught:
        hash_password("short")
    assert caught.value.code is Code.BAD_REQUEST
    stored = hash_password("Übermut tut gut")
    assert stored.startswith("$argon2id$v=19$m=32768,t=3,p=1$")
    assert verify_password("U\u0308bermut tut gut", stored)
    assert not verify_password("ubermut tut gut", stored)
    assert not verify_password("", None)
    assert stored != hash_password("Übermut tut gut")


def by_scrypt(password: str) -> str:
    """A hash as versions before Argon2 stored it."""
    salt = bytes(range(16))
    made = hashlib.scrypt(
        password.encode(), salt=salt, n=1 << 15, r=8, p=1, maxmem=1 << 26, dklen=32
    )
    return f"scrypt$15$8$1${canonical.encode_base64url(salt)}${canonical.encode_base64url(made)}"


async def stored_password(house: Any, person: str) -> str:
    query = select(people.c.password).where(people.c.id == person)
    return str(await house.authority.store.read(lambda c: c.execute(query).scalar_one()))


async def test_an_older_hash_still_lets_in_and_is_replaced_at_the_next_login(house: Any) -> None:
    ann, login = await house.person(), house.identities.login
    old = update(people).where(people.c.id == ann.id).values(password=by_scrypt(WORDS))
    await house.authority.store.write(lambda c: c.execute(old))
    visit = await login.visit(ann)
    with pytest.raises(AuthorityError):
        await login.by_password("Ann", "wrong horse battery")
    with pytest.raises(AuthorityError):
        await login.by_password("Nobody", WORDS)
    assert (await stored_password(house, ann.id)).startswith("scrypt$")
    assert (await login.by_password("Ann", WORDS)).id == ann.id
    made = await stored_password(house, ann.id)
    assert made.startswith("$argon2id$")
    assert (await login.visitor(visit)).id == ann.id
    assert (await login.by_password("Ann", WORDS)).id == ann.id
    assert await stored_password(house, ann.id) == made


@pytest.mark.parametrize("stored", [None, "argon2", "scrypt"])
def test_both_functions_are_computed_while_one_hash_is_older(
    stored: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[str] = []
    scrypt, verify = hashlib.scrypt, PasswordHasher.verify
    kept = {None: None, "argon2": hash_password(WORDS), "scrypt": by_scrypt(WORDS)}[stored]

    def count_scrypt(*args: Any, **options: Any) -> bytes:
        computed.append("scrypt")
        return scrypt(*args, **options)

    def count_argon2(*args: Any) -> bool:
        computed.append("argon2")
        return verify(*args)

    monkeypatch.setattr(hashlib, "scrypt", count_scrypt)
    monkeypatch.setattr(PasswordHasher, "verify", count_argon2)
    assert verify_password(WORDS, kept, with_scrypt=True) is (kept is not None)
    assert not verify_password("wrong horse battery", kept, with_scrypt=True)
    assert computed == ["scrypt", "argon2"] * 2


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
