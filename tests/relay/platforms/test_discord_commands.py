"""The agents' commands, shown on Discord."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr, ValidationError
from tests.fakes.discord.server import FakeDiscord
from tests.relay.platforms.discord_bots import opened, settings

from accord.kernel.clock import SystemClock
from accord.relay.connector import PlatformWithCommands
from accord.relay.errors import RelayError
from accord.relay.platforms import discord

ASK = {"name": "ask", "description": "Ask something"}
UNION: dict[str, Any] = {"commands": "union", "commands_from": ("a", "b")}
WHAT = {"name": "what", "description": "What to ask", "type": 3}


@pytest.fixture
async def fake() -> AsyncIterator[FakeDiscord]:
    made = FakeDiscord()
    async with made.serving():
        yield made


def shown(fake: FakeDiscord) -> list[str]:
    return [each["name"] for each in fake.application.commands.get("", [])]


def puts(fake: FakeDiscord) -> int:
    return sum(each.method == "PUT" for each in fake.api.asked)


def test_a_command_is_read_with_its_options() -> None:
    [command] = discord.read_commands(
        [{**ASK, "options": [WHAT, {**WHAT, "name": "now", "required": True}]}]
    )
    assert command["type"] == 1
    # Discord wants the required ones first.
    assert [each["name"] for each in command["options"]] == ["now", "what"]


def test_sub_commands_have_options_and_groups_have_sub_commands() -> None:
    sub = {"name": "add", "description": "Add", "type": 1, "options": [WHAT]}
    group = {"name": "list", "description": "Lists", "type": 2, "options": [sub, WHAT]}
    [command] = discord.read_commands([{**ASK, "options": [group]}])
    assert command["options"] == [{**group, "options": [sub]}]
    # A group in a group is not known to Discord.
    deeper = {"name": "more", "description": "More", "type": 2, "options": [group]}
    assert discord.read_commands([{**ASK, "options": [deeper]}]) == discord.read_commands([ASK])


def test_choices_have_the_type_of_their_option() -> None:
    choices = [{"name": "one", "value": "1"}, {"name": "two", "value": 2}, {"name": ""}, 3]
    [command] = discord.read_commands([{**ASK, "options": [{**WHAT, "choices": choices}]}])
    assert command["options"][0]["choices"] == [{"name": "one", "value": "1"}]


@pytest.mark.parametrize(
    "entry",
    [
        None,
        7,
        "ask",
        {},
        {"name": "Ask"},
        {"name": "a b"},
        {"name": "x" * 33},
        {"name": ""},
        {"name": 7},
    ],
)
def test_a_command_that_discord_would_refuse_is_left_out(entry: Any) -> None:
    assert [each["name"] for each in discord.read_commands([entry, ASK])] == ["ask"]


@pytest.mark.parametrize("manifest", [None, {}, "ask", 7, {"commands": [ASK]}])
def test_what_is_no_list_is_no_command(manifest: Any) -> None:
    assert discord.read_commands(manifest) == []


def test_of_two_instances_the_first_by_id_has_a_name() -> None:
    offers = {
        "b": discord.read_commands([{**ASK, "description": "b"}, {"name": "only-b"}]),
        "a": discord.read_commands([{**ASK, "description": "a"}]),
    }
    merged = discord.merge_commands(offers)
    assert [(each["name"], each["description"]) for each in merged] == [
        ("ask", "a"),
        ("only-b", "only-b"),
    ]


def test_there_are_at_most_a_hundred_commands() -> None:
    many = [{"name": f"c{number}"} for number in range(300)]
    assert len(discord.read_commands(many)) == 100
    assert (
        len(
            discord.merge_commands(
                {"a": discord.read_commands(many[:100]), "b": discord.read_commands(many[100:])}
            )
        )
        == 100
    )


values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(0, 12) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["name", "description", "type", "options", "choices", "value", "required"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(st.lists(values, max_size=4) | values)
def test_a_manifest_of_any_kind_is_read_into_what_discord_takes(manifest: Any) -> None:
    for command in discord.merge_commands({"a": discord.read_commands(manifest)}):
        assert 1 <= len(command["name"]) <= 32
        assert 1 <= len(command["description"]) <= 100


async def test_commands_are_published_and_again_only_when_they_change(fake: FakeDiscord) -> None:
    async with opened(fake, **UNION) as bot:
        platform = bot.platform
        assert isinstance(platform, PlatformWithCommands)
        platform.offer_commands("a", [ASK])
        platform.offer_commands("b", [{"name": "tell"}])
        await fake.until(lambda: shown(fake) == ["ask", "tell"])
        assert puts(fake) == 1
        platform.offer_commands("a", [ASK])
        await asyncio.sleep(0.05)
        assert puts(fake) == 1
        platform.offer_commands("b", [])
        await fake.until(lambda: shown(fake) == ["ask"])


async def test_an_equal_menu_is_published_again_when_the_lease_was_another_processs(
    fake: FakeDiscord,
) -> None:
    async with opened(fake, **UNION) as bot:
        bot.platform.begin_commands()
        bot.platform.offer_commands("a", [ASK])
        bot.platform.offer_commands("b", [{"name": "tell"}])
        await fake.until(lambda: shown(fake) == ["ask", "tell"])
        fake.application.commands[""] = [{"name": "theirs", "id": "7"}]
        bot.platform.begin_commands()
        bot.platform.offer_commands("a", [ASK])
        # What the other agent offered is gone: it was withdrawn meanwhile.
        await fake.until(lambda: shown(fake) == ["ask"])
        fake.application.commands[""] = [{"name": "theirs", "id": "7"}]
        bot.platform.begin_commands()
        await fake.until(lambda: shown(fake) == [])


async def test_without_the_operators_word_no_gateway_changes_the_menu(fake: FakeDiscord) -> None:
    fake.application.commands[""] = [{"name": "registered"}]
    async with opened(fake) as bot:
        bot.platform.offer_commands("a", [ASK])
        await asyncio.sleep(0.05)
    async with opened(fake, commands="union", commands_from=("b",)) as bot:
        bot.platform.offer_commands("a", [ASK])
        await asyncio.sleep(0.05)
    assert shown(fake) == ["registered"]
    assert puts(fake) == 0


async def test_the_operators_own_commands_are_shown_and_win(
    fake: FakeDiscord, tmp_path: Path
) -> None:
    file = tmp_path / "commands.json"
    file.write_text('[{"name": "ask", "description": "By the operator"}, {"name": "zoo"}]')
    async with opened(fake, commands="pinned", commands_file=str(file)) as bot:
        bot.platform.begin_commands()
        await fake.until(lambda: shown(fake) == ["ask", "zoo"])
        bot.platform.offer_commands("a", [{"name": "mine"}])
        await asyncio.sleep(0.05)
        assert shown(fake) == ["ask", "zoo"]
    async with opened(fake, **UNION, commands_file=str(file)) as bot:
        bot.platform.begin_commands()
        bot.platform.offer_commands("a", [ASK, {"name": "mine"}])
        await fake.until(lambda: sorted(shown(fake)) == ["ask", "mine", "zoo"])
        [ask] = [each for each in fake.application.commands[""] if each["name"] == "ask"]
        assert ask["description"] == "By the operator"


@pytest.mark.parametrize("text", [None, "nonsense", "{}", "[7]"])
async def test_a_file_without_commands_is_refused(
    fake: FakeDiscord, tmp_path: Path, text: str | None
) -> None:
    file = tmp_path / "commands.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(RelayError) as refused:
        async with opened(fake, commands="pinned", commands_file=str(file)):
            pass
    assert refused.value.where == "commands_file"


async def test_nonsense_takes_no_commands_away(fake: FakeDiscord) -> None:
    async with opened(fake, **UNION) as bot:
        bot.platform.offer_commands("a", [ASK])
        await fake.until(lambda: shown(fake) == ["ask"])
        nonsense: list[Any] = [{}, "ask", 7, {"commands": []}]
        for manifest in nonsense:
            bot.platform.offer_commands("a", manifest)
        await asyncio.sleep(0.05)
        assert shown(fake) == ["ask"]
        assert puts(fake) == 1


async def test_trouble_with_commands_is_tried_again_and_is_nobody_elses(fake: FakeDiscord) -> None:
    async with opened(fake, **UNION) as bot:
        fake.drop_requests(4)
        bot.platform.offer_commands("a", [ASK])
        await fake.until(lambda: shown(fake) == ["ask"])


async def test_opening_asks_for_nothing_even_where_nobody_answers(fake: FakeDiscord) -> None:
    async with opened(fake, api_url="http://127.0.0.1:9/api/v10") as bot:
        assert bot.platform.descriptor().platform == "discord"


async def test_a_token_may_be_in_a_file_and_must_be_one(fake: FakeDiscord, tmp_path: Any) -> None:
    file = tmp_path / "token"
    file.write_text(f"{fake.token}\n")
    async with opened(fake, token=SecretStr(""), token_file=str(file)) as bot, bot.listening():
        await bot.is_ready()
    for token in (
        SecretStr(""),
        SecretStr("two words"),
        SecretStr("ünïcode"),
        SecretStr("a\r\nb: c"),
    ):
        with pytest.raises(RelayError) as refused:
            async with discord.open_discord(settings(fake, token=token), SystemClock()):
                pass
        assert refused.value.mend
        assert "words" not in str(refused.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"application_id": "x"},
        {"public_key": "abc"},
        {"shard": (2, 2)},
        {"shard": (-1, 2)},
        {"shard": (0, 2), "shards": 2},
        {"shards": -1},
        {"shards": 5000},
        {"api_url": "ftp://x"},
        {"api_url": "https://user:secret@host"},
        {"mentions": ["nobody"]},
        {"backfill_hours": -1},
        {"commands": "everything"},
        {"commands": "pinned"},
        {"commands": "union"},
        {"unheard_of": 1},
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        discord.DiscordSettings(**{"application_id": "1", "token": "t", **wrong})
