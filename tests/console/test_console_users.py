"""Users of the console: roles, what each may do, and how they come and go."""

import re
from pathlib import Path

import pytest
from tests.console.consoles import Opened, opened
from typer.testing import CliRunner

from accord.cli import app
from accord.console import ConsoleError
from accord.console.pages import PAGES
from accord.console.sessions import Role
from accord.console.users import MOST_USERS, Users
from accord.kernel.signing import SigningKey
from accord.station.home import Home

LINK = re.compile(r"login\?link=([\w-]{43})")


def users_of(found: Opened) -> Users:
    assert found.parts.users is not None
    return found.parts.users


async def test_an_owner_adds_users_whose_links_log_them_in(tmp_path: Path) -> None:
    acts: list[str] = []

    async def note(what: str, _by: str, **_about: str) -> None:
        acts.append(what)

    async with opened(tmp_path / "home") as found, found.inside() as owner:
        object.__setattr__(found.parts, "note", note)
        made = await owner.send("users/add", {"name": "anna", "role": "READER"})
        [link] = LINK.findall(made.text)
        again = await owner.send("users/add", {"name": "anna", "role": "OWNER"})
        assert again.status_code == 409
        async with found.browser() as anna:
            assert (await anna.log_in(link)).headers["location"] == "/console/"
            assert (await anna.log_in(link)).status_code == 403
            assert "anna (console " in (await owner.get("users")).text
            # Who is removed is out at once, and a link that was not used opens nothing.
            other = LINK.findall((await owner.send("users/link", {"name": "anna"})).text)[0]
            assert "is removed" in (await owner.send("users/remove", {"name": "anna"})).text
            assert (await anna.get("")).status_code == 303
            assert (await anna.log_in(other)).status_code == 403
        assert {"console.user_added", "console.user_removed"} <= set(acts)


async def test_each_role_does_what_it_may_and_no_more(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found:
        for role in Role:
            await users_of(found).add(role.name.lower(), role)
        post = {"title": "Ladder", "category": "offer", "days": "7"}
        for role in Role:
            async with found.inside(role.name.lower()) as browser:
                posted = await browser.send("market/post", post)
                assert (posted.status_code == 200) is (role >= Role.OPERATOR), role
                added = await browser.send("users/add", {"name": "x", "role": "OWNER"})
                assert (added.status_code == 200) is (role >= Role.OWNER), role
                listed = await browser.get("users")
                assert (listed.status_code == 200) is (role >= Role.OWNER), role
                assert ("Who is logged in" in added.text) is (role >= Role.OWNER), role
                assert ('href="/console/users"' in (await browser.get("")).text) is (
                    role >= Role.OWNER
                )
                asked = await browser.send("ask/ask", {"q": "How?"})
                assert asked.status_code == 200
                for page in PAGES:
                    if role >= page.read_by:
                        assert (await browser.get(page.slug)).status_code == 200, page.slug
        assert await users_of(found).role("x") is Role.OWNER


async def test_a_reader_is_told_and_finds_no_form_that_works(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found:
        await users_of(found).add("rita", Role.READER)
        async with found.inside("rita") as reader:
            shown = (await reader.get("market")).text
            assert "not change anything on it" in shown
            assert re.search(
                r'action="/console/market/post"[^>]*>.*?<fieldset[^>]* disabled>', shown, re.DOTALL
            )
            assert "fieldset" not in (await reader.get("ask")).text
        await users_of(found).change("rita", Role.OPERATOR)
        async with found.inside("rita") as operator:
            assert "not change anything on it" not in (await operator.get("market")).text


async def test_the_search_offers_what_a_role_may_open(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found:
        for role in Role:
            await users_of(found).add(role.name.lower(), role)
        for role in Role:
            async with found.inside(role.name.lower()) as browser:
                for query in ("", "?q=users", "?q=invite"):
                    shown = (await browser.get(f"find{query}")).text
                    hits = re.findall(
                        r'<li><a href="(/console/[^"#]*)(#\w+)?"><span class="tag"', shown
                    )
                    pages = {page.path: page for page in PAGES}
                    for path, form in hits:
                        page = pages[path]
                        least = max(page.read_by, page.acted_by) if form else page.read_by
                        assert role >= least, (role, path, form)
                shown = (await browser.get("find?q=users")).text
                assert ('/console/users"><span' in shown) is (role is Role.OWNER)
                shown = (await browser.get("find?q=invite+somebody")).text
                assert ("members#invite" in shown) is (role >= Role.OPERATOR)


async def test_users_have_names_limits_and_roles(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as owner:
        users = users_of(found)
        for wrong in ("", "Anna", "a b", "../x", "a" * 33, "ä"):
            assert (
                await owner.send("users/add", {"name": wrong, "role": "READER"})
            ).status_code == 400
        assert (await owner.send("users/add", {"name": "a", "role": "KING"})).status_code == 400
        for path in ("link", "remove", "change"):
            gone = await owner.send(f"users/{path}", {"name": "nobody", "role": "READER"})
            assert gone.status_code == 404, path
        assert await users.listed() == []
        for number in range(MOST_USERS):
            await users.add(f"u{number}", Role.READER)
        with pytest.raises(ConsoleError, match="users already"):
            await users.add("one-more", Role.READER)


def test_the_command_makes_links_for_users(tmp_path: Path) -> None:
    home = tmp_path / "home"
    key = Home(home).device_key
    key.parent.mkdir(parents=True)
    SigningKey.create(key)
    at = ["--home", str(home)]
    runner = CliRunner()
    unknown = runner.invoke(app, ["console", "link", "--user", "anna", *at])
    assert isinstance(unknown.exception, ConsoleError)
    added = runner.invoke(app, ["console", "link", "--user", "anna", "--role", "reader", *at])
    assert LINK.search(added.stdout)
    assert LINK.search(runner.invoke(app, ["console", "link", "--user", "anna", *at]).stdout)
    assert runner.invoke(app, ["console", "link", "--role", "reader", *at]).exit_code == 2
