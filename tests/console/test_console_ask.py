"""Ask: conversations with the documents, their history, and what can be done with them."""

import asyncio
import re
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import MetaData, text
from tests.console.consoles import EVIL, Browser, Scripted, opened

from accord.capabilities.llm import BackendModel, GenerationRequest, Piece, PromptRead, TextPiece
from accord.console import ConsoleError
from accord.console.answers import exported
from accord.console.conversations import MOST_CONVERSATIONS, Conversations, TurnState
from accord.console.sessions import Role
from accord.console.tables import CONSOLE
from accord.kernel.clock import SystemClock
from accord.storage import Schema, open_store, roll_back

WATER = b"# Water\n\nRain water must be\nboiled for five minutes before drinking.\n"
BOIL = "How long must rain water be boiled"


async def add(browser: Browser) -> None:
    given = {"corpus": "library", "title": f"Water {EVIL}", "licence": "CC0-1.0"}
    file = ("water.md", WATER, "text/markdown")
    await browser.send("files/add", given, files={"file": file})


async def asked(browser: Browser, question: str = BOIL, **fields: str) -> tuple[str, str]:
    """Ask, wait for the answer, and return the conversation and its page."""
    shown = await browser.send("ask/ask", {"q": question, **fields})
    chosen = shown.url.params["c"]
    return chosen, (await browser.get(f"ask/whole?c={chosen}", follow_redirects=True)).text


class Slow(Scripted):
    """A model that says one word, and then nothing until it is let go on."""

    def __init__(self) -> None:
        super().__init__()
        self.spoke = asyncio.Event()
        self.go = asyncio.Event()

    async def generate(self, asked: GenerationRequest) -> AsyncGenerator[Piece]:
        yield PromptRead(7)
        yield TextPiece("Boiling ", None, 1)
        yield TextPiece("helps ", None, 2)
        self.spoke.set()
        await self.go.wait()


async def test_a_question_begins_a_conversation_that_is_kept(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        await add(browser)
        chosen, shown = await asked(browser)
        assert "Boil it first" in shown
        assert "Open the passage" in shown
        assert "boiled for five minutes" in shown
        assert EVIL not in shown
        again = (await browser.get("ask")).text
        assert f"/console/ask?c={chosen}" in again
        assert BOIL in again


async def test_what_was_said_before_is_told_to_the_model(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        await add(browser)
        chosen, _ = await asked(browser)
        _, shown = await asked(browser, "And is rain water boiled for minutes", c=chosen)
        assert shown.count('class="question') == 2
        told = found.model.asked[-1].messages or ()
        assert "Boil it first" in str([each for each in told if each["role"] == "assistant"])


async def test_an_answer_is_streamed_and_ends_with_its_sources(tmp_path: Path) -> None:
    slow = Slow()
    async with opened(tmp_path / "home", model=slow) as found, found.inside() as browser:
        await add(browser)
        page = await browser.send("ask/ask", {"q": BOIL})
        chosen = page.url.params["c"]
        assert f'sse-connect="/console/ask/answer?c={chosen}&amp;number=1"' in page.text
        assert "Show the answer</a>" in page.text  # for browsers without scripts
        stream = asyncio.create_task(browser.get(f"ask/answer?c={chosen}&number=1"))
        await slow.spoke.wait()
        slow.go.set()
        told = (await stream).text
        events = re.findall(r"^event: (\w+)$", told, re.MULTILINE)
        assert events[-2:] == ["whole", "end"]
        assert "<p>Boiling helps" in told
        assert "/console/files/document/blake3:" in told


async def test_an_answer_that_is_stopped_keeps_what_was_said_and_can_be_asked_for_again(
    tmp_path: Path,
) -> None:
    slow = Slow()
    async with opened(tmp_path / "home", model=slow) as found, found.inside() as browser:
        await add(browser)
        page = await browser.send("ask/ask", {"q": BOIL})
        chosen = page.url.params["c"]
        await slow.spoke.wait()
        stopped = (await browser.send("ask/stop", {"c": chosen})).text
        assert "It was stopped here." in stopped
        slow.go.set()
        await browser.send("ask/retry", {"c": chosen})
        again = (await browser.get(f"ask/whole?c={chosen}", follow_redirects=True)).text
        assert again.count('class="question') == 2


async def test_a_page_that_is_closed_does_not_stop_its_answer(tmp_path: Path) -> None:
    slow = Slow()
    async with opened(tmp_path / "home", model=slow) as found, found.inside() as browser:
        await add(browser)
        page = await browser.send("ask/ask", {"q": BOIL})
        chosen = page.url.params["c"]
        reading = asyncio.create_task(browser.get(f"ask/answer?c={chosen}&number=1"))
        await slow.spoke.wait()
        reading.cancel()
        slow.go.set()
        shown = (await browser.get(f"ask/whole?c={chosen}", follow_redirects=True)).text
        assert "Boiling helps" in shown
        assert "It was stopped here." not in shown


async def test_a_conversation_is_renamed_found_exported_and_deleted(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        await add(browser)
        chosen, _ = await asked(browser)
        renamed = await browser.send("ask/rename", {"c": chosen, "title": f"Tea {EVIL}"})
        assert "Tea &lt;script&gt;" in renamed.text
        for words, is_found in (("tea", True), ("BOILED rain", True), ("100%", False)):
            shown = (await browser.get("ask", params={"words": words})).text
            assert (f"ask?c={chosen}" in shown) is is_found, words
        file = await browser.get(f"ask/export?c={chosen}")
        assert file.headers["content-disposition"] == f'attachment; filename="{chosen}.md"'
        assert f"## {BOIL}" in file.text
        assert "blake3:" in file.text
        assert "is deleted" in (await browser.send("ask/delete", {"c": chosen})).text
        assert (await browser.get(f"ask?c={chosen}")).status_code == 404
        assert (await browser.send("ask/delete", {"c": chosen})).status_code == 404


async def test_the_chosen_corpus_and_model_are_those_of_the_whole_conversation(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        await add(browser)
        _, shown = await asked(browser, corpus="library", model="scripted")
        assert '<option value="library" selected>' in shown
        assert '<option value="scripted" selected>' in shown
        _, shown = await asked(browser, model="no-such-model")
        assert 'role="alert"' in shown


async def test_what_was_chosen_stays_when_a_question_is_refused_and_comes_by_the_address(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        await add(browser)
        shown = (await browser.get("files")).text
        assert 'href="/console/ask?corpus=library"' in shown
        shown = (await browser.get("ask?corpus=library&model=scripted")).text
        chosen = ('<option value="library" selected>', '<option value="scripted" selected>')
        assert all(each in shown for each in chosen)
        refused = await browser.send("ask/ask", {"q": "", "corpus": "library", "model": "scripted"})
        assert refused.status_code == 400
        assert all(each in refused.text for each in chosen)
        # Also where it cannot be listed now, and whatever it is.
        evil = (await browser.get("ask", params={"corpus": EVIL})).text
        assert "(not found now)</option>" in evil
        assert EVIL not in evil
        conversation, shown = await asked(browser, corpus="library", model="scripted")
        assert all(each in shown for each in chosen)
        given = {"q": "x" * 3000, "c": conversation, "corpus": "", "model": ""}
        refused = await browser.send("ask/ask", given)
        assert not any(each in refused.text for each in chosen)
        assert refused.text.count("selected") == 0


async def test_an_answer_of_the_small_built_in_model_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = (BackendModel("scripted", ctx=4096, built_in=True),)
    for models, is_marked in ((Scripted.models, False), (small, True)):
        monkeypatch.setattr(Scripted, "models", models)
        async with opened(tmp_path / f"home {is_marked}") as found, found.inside() as browser:
            await add(browser)
            _, shown = await asked(browser)
            assert ("the small built-in model" in shown) is is_marked


async def test_what_no_document_is_about_is_not_made_up(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        assert "no documents yet" in (await browser.get("ask")).text
        await add(browser)
        _, shown = await asked(browser, "Who won the chess championship")
        assert "I do not know" in shown
        assert found.model.asked == []


async def test_a_question_that_is_none_is_refused_and_nothing_is_kept(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        for fields in ({}, {"q": " "}, {"q": "x" * 3000}, {"q": "x", "c": "no such"}):
            refused = await browser.send("ask/ask", fields)
            assert refused.status_code in (400, 404)
            assert 'role="alert"' in refused.text
        assert "What you ask is kept here" in (await browser.get("ask")).text


async def test_without_a_community_the_question_fails_with_its_reason(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        await browser.get("ask")
        found.is_up = False
        _, shown = await asked(browser)
        assert "the community is not up" in shown


async def kept(store_folder: Path, turns: int = 1) -> None:
    async with open_store(store_folder, CONSOLE) as store:
        conversations = Conversations(store, SystemClock()).of("")
        made = await conversations.begin("Why?", "", "")
        for _ in range(turns):
            await conversations.ask(made.id, "Why?")


async def test_a_question_that_a_process_left_behind_is_shown_as_stopped(tmp_path: Path) -> None:
    await kept(tmp_path)
    async with open_store(tmp_path, CONSOLE) as store:
        everybody = Conversations(store, SystemClock())
        await everybody.stop_all()
        conversations = everybody.of("")
        [made] = await conversations.latest()
        _, [turn] = await conversations.get(made.id)
        assert turn.state is TurnState.STOPPED
        assert "stopped" in exported(made, [turn])


async def test_the_oldest_conversations_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accord.console.conversations.MOST_CONVERSATIONS", 3)
    assert MOST_CONVERSATIONS == 500
    async with open_store(tmp_path, CONSOLE) as store:
        conversations = Conversations(store, SystemClock()).of("")
        made = [await conversations.begin(f"Question {n}", "", "") for n in range(5)]
        shown = {each.id for each in await conversations.latest()}
        assert len(shown) == 3
        assert made[-1].id in shown
        # Those of one user make no room for another's.
        other = replace(conversations, user="anna")
        for number in range(4):
            await other.begin(f"Question {number}", "", "")
        assert {each.id for each in await conversations.latest()} == shown
        assert len(await other.latest()) == 3


async def test_a_conversation_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accord.console.conversations.MOST_TURNS", 2)
    async with open_store(tmp_path, CONSOLE) as store:
        conversations = Conversations(store, SystemClock()).of("")
        made = await conversations.begin("Why?", "", "")
        assert [await conversations.ask(made.id, "Why?") for _ in range(2)] == [1, 2]
        with pytest.raises(ConsoleError, match="at most 2 questions"):
            await conversations.ask(made.id, "Why?")


async def test_only_so_many_questions_are_answered_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accord.console.answers.MOST_ANSWERS", 1)
    slow = Slow()
    async with opened(tmp_path / "home", model=slow) as found, found.inside() as browser:
        await add(browser)
        await browser.send("ask/ask", {"q": BOIL})
        await slow.spoke.wait()
        assert (await browser.send("ask/ask", {"q": BOIL})).status_code == 429
        slow.go.set()


async def test_a_conversation_is_its_users_alone_whatever_the_role(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found:
        users = found.parts.users
        assert users is not None
        for name in ("anna", "bert"):
            await users.add(name, Role.OWNER)
        async with (
            found.inside() as owner,
            found.inside("anna") as anna,
            found.inside("bert") as bert,
        ):
            await add(owner)
            everybody = {"owner": owner, "anna": anna, "bert": bert}
            secret = {name: f"{BOIL} said {name}'s secret" for name in everybody}
            own = {name: (await asked(each, secret[name]))[0] for name, each in everybody.items()}
            for name, browser in everybody.items():
                for whose, chosen in own.items():
                    is_own = name == whose
                    for path in ("ask", "ask?words=secret", f"ask?words={whose}", "find?q=secret"):
                        shown = (await browser.get(path)).text
                        may_be = is_own and not path.startswith("find")
                        assert (f"said {whose}" in shown) is may_be, (name, whose, path)
                    for path in (
                        f"ask?c={chosen}",
                        f"ask/export?c={chosen}",
                        f"ask/whole?c={chosen}",
                        f"ask/answer?c={chosen}&number=1",
                    ):
                        answer = await browser.get(path, follow_redirects=True)
                        assert answer.status_code == (200 if is_own else 404), (name, whose, path)
                        if not is_own:
                            assert "no such conversation" in answer.text
                            assert f"said {whose}" not in answer.text
                    if is_own:
                        continue
                    for path in ("stop", "retry", "rename", "delete", "ask"):
                        given = {"c": chosen, "title": "mine now", "q": BOIL}
                        refused = await browser.send(f"ask/{path}", given)
                        assert refused.status_code == 404, (name, whose, path)
            for name, browser in everybody.items():
                shown = (await browser.get(f"ask?c={own[name]}")).text
                assert shown.count('class="question') == 1
                assert "mine now" not in shown


async def test_nobody_else_stops_an_answer(tmp_path: Path) -> None:
    slow = Slow()
    async with opened(tmp_path / "home", model=slow) as found:
        assert found.parts.users is not None
        await found.parts.users.add("anna", Role.OWNER)
        async with found.inside() as owner, found.inside("anna") as anna:
            await add(owner)
            chosen = (await owner.send("ask/ask", {"q": BOIL})).url.params["c"]
            await slow.spoke.wait()
            for path in ("stop", "delete", "retry"):
                assert (await anna.send(f"ask/{path}", {"c": chosen})).status_code == 404
            slow.go.set()
            shown = (await owner.get(f"ask/whole?c={chosen}", follow_redirects=True)).text
            assert "Boiling helps" in shown
            assert "It was stopped here." not in shown


async def test_the_conversations_of_a_removed_user_go_and_a_namesake_finds_none(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path / "home") as found:
        assert found.parts.users is not None
        await found.parts.users.add("anna", Role.READER)
        async with found.inside() as owner, found.inside("anna") as anna:
            await add(owner)
            await asked(owner)
            await asked(anna, f"{BOIL} for anna")
            await owner.send("users/remove", {"name": "anna"})
            await owner.send("users/add", {"name": "anna", "role": "READER"})
            async with found.inside("anna") as namesake:
                assert "for anna" not in (await namesake.get("ask")).text
            assert BOIL in (await owner.get("ask")).text


@pytest.mark.parametrize("is_undone", [False, True])
async def test_conversations_from_before_users_belong_to_the_owner(
    tmp_path: Path, is_undone: bool
) -> None:
    made = CONSOLE.migrations
    assert made is not None
    older = tmp_path / "older"
    older.mkdir()
    for name in ("console_0001.py", "console_0002.py"):
        (older / name).write_text((made / name).read_text())
    before = Schema("console", MetaData(), older)
    stores = tmp_path / "stores"
    stores.mkdir()
    insert = "INSERT INTO conversations VALUES ('a', 'Why?', '', '', 1)"
    async with open_store(stores, before) as store:
        await store.write(lambda connection: connection.execute(text(insert)).rowcount)
    async with open_store(stores, CONSOLE) as store:
        conversations = Conversations(store, SystemClock())
        assert [each.title for each in await conversations.of("").latest()] == ["Why?"]
        assert await conversations.of("anna").latest() == []
        of_anna = await conversations.of("anna").begin("Mine?", "", "")
        await conversations.of("anna").ask(of_anna.id, "Mine?")
    if is_undone:
        # Nobody may see then what anna asked.
        newest = "console_0003.py"
        later = (made / newest).read_text().replace('since = "0.3.0"', 'since = "0.4.0"')
        (older / newest).write_text(later)
        roll_back(stores, before, "0.3.0")
        (older / newest).unlink()
        async with open_store(stores, before) as store:
            wanted = text("SELECT title FROM conversations")
            left = await store.read(lambda connection: connection.execute(wanted).scalars().all())
            assert left == ["Why?"]
