"""How an answer is shown while the agent is still at it: on virtual time."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.relay.gateway.conftest import message, virtually

from accord.relay.gateway import (
    LONG_SEGMENT,
    SHORT_SEGMENT,
    GatewaySettings,
    GatewayState,
    Pace,
    RelayGateway,
    Reply,
    Turn,
    complete_length,
    is_rate_limited,
)
from accord.relay.rules import Descriptor, Outcome, Result, measure
from accord.testing import VirtualClock, run_virtual
from accord.testing.connector import DESCRIPTOR, Connector


class Screen:
    """A platform that shows messages, and refuses what it is told to."""

    def __init__(self, descriptor: Descriptor = DESCRIPTOR) -> None:
        self.descriptor = descriptor
        self.shown: dict[str, str] = {}
        self.changes: list[tuple[float, str, str]] = []
        self.refuse: list[Result | None] = []
        self.drafts: list[str] = []

    async def say(self, content: str, *, is_first: bool) -> Result:
        assert is_first == (not self.shown)
        return self._change(f"n{len(self.shown)}", content, "say")

    async def edit(self, message_id: str, content: str, *, is_passing: bool) -> Result:
        assert message_id in self.shown
        return self._change(message_id, content, "edit")

    async def draft(self, content: str) -> Result:
        assert self.descriptor.measure(content) <= self.descriptor.max_message_length
        if self.refuse and (refusal := self.refuse.pop(0)) is not None:
            return refusal
        self.drafts.append(content)
        return Result(True)

    def _change(self, name: str, content: str, how: str) -> Result:
        assert content.strip()
        assert self.descriptor.measure(content) <= self.descriptor.max_message_length
        if self.refuse and (refusal := self.refuse.pop(0)) is not None:
            return refusal
        self.shown[name] = content
        self.changes.append((asyncio.get_running_loop().time(), how, content))
        return Result(True, name)

    def reply(self) -> Reply:
        edits = self.descriptor.supports_edit
        drafts = self.descriptor.supports_draft_streaming
        return Reply(self, self.descriptor, edits=edits, pause=1.0, drafts=drafts)


def stream(screen: Screen, parts: list[str], pause: float = 0.1) -> Reply:
    reply = screen.reply()

    async def play() -> None:
        for part in parts:
            await reply.add(part)
            await asyncio.sleep(pause)
        await reply.finish()

    run_virtual(play(), max_seconds=10_000)
    return reply


def test_a_short_answer_is_one_message() -> None:
    screen = Screen()
    stream(screen, ["Hello, ", "world"], pause=0.0)
    assert [(how, text) for _, how, text in screen.changes] == [("say", "Hello, world")]


def test_a_message_grows_in_place_no_faster_than_the_platform_likes() -> None:
    screen = Screen()
    stream(screen, [f"word{n} " for n in range(50)])
    times = [at for at, _, _ in screen.changes]
    assert [how for _, how, _ in screen.changes] == ["say", *["edit"] * (len(times) - 1)]
    assert all(later - earlier >= 0.999 for earlier, later in itertools.pairwise(times))
    assert 5 <= len(times) <= 8
    assert list(screen.shown.values()) == ["".join(f"word{n} " for n in range(50)).rstrip()]


class SilentScreen(Screen):
    """Shows everything, and does not say so the first time."""

    def _change(self, name: str, content: str, how: str) -> Result:
        result = super()._change(name, content, how)
        is_first = len(self.changes) == 1
        return Result(False, error="silence", outcome=Outcome.UNKNOWN) if is_first else result


@pytest.mark.parametrize("edits", [True, False])
def test_what_may_have_been_said_is_not_repeated_and_the_rest_is_said(edits: bool) -> None:
    screen = SilentScreen(replace(DESCRIPTOR, supports_edit=edits, max_message_length=100))
    words = [f"word{n} " for n in range(50)]
    reply = stream(screen, words)
    assert reply.refusal is None
    assert " ".join(screen.shown.values()).split() == "".join(words).split()


DRAFTING = replace(DESCRIPTOR, supports_draft_streaming=True)


def test_where_drafts_are_shown_the_answer_is_sent_once_it_is_whole() -> None:
    screen = Screen(DRAFTING)
    stream(screen, [f"word{n} " for n in range(50)])
    whole = "".join(f"word{n} " for n in range(50)).rstrip()
    assert 3 <= len(screen.drafts) <= 8
    assert all(whole.startswith(each) for each in screen.drafts)
    assert [(how, text) for _, how, text in screen.changes] == [("say", whole)]


def test_where_a_draft_is_not_taken_the_message_grows_in_place() -> None:
    screen = Screen(DRAFTING)
    screen.refuse = [Result(False, error="drafts are not for this chat")]
    stream(screen, [f"word{n} " for n in range(50)])
    assert screen.drafts == []
    assert {how for _, how, _ in screen.changes} == {"say", "edit"}
    assert list(screen.shown.values()) == ["".join(f"word{n} " for n in range(50)).rstrip()]


def test_a_drafted_answer_that_outgrows_a_message_goes_on_in_the_next() -> None:
    screen = Screen(replace(DRAFTING, max_message_length=40))
    stream(screen, [f"word{n} " for n in range(30)])
    assert len(screen.shown) > 3
    assert " ".join(screen.shown.values()).split() == [f"word{n}" for n in range(30)]


def test_an_answer_that_outgrows_a_message_goes_on_in_the_next() -> None:
    screen = Screen(replace(DESCRIPTOR, max_message_length=40))
    stream(screen, [f"word{n} " for n in range(30)])
    assert len(screen.shown) > 3
    said = " ".join(screen.shown.values())
    assert said.split() == [f"word{n}" for n in range(30)]


def test_code_stays_fenced_across_messages() -> None:
    screen = Screen(replace(DESCRIPTOR, max_message_length=60))
    code = "".join(f"line number {n}\n" for n in range(12))
    stream(screen, ["Look:\n```py\n", *code.splitlines(keepends=True), "```\nDone."])
    assert len(screen.shown) > 3
    for shown in screen.shown.values():
        assert shown.count("```") % 2 == 0
    said = "\n".join(screen.shown.values())
    assert [line for line in said.splitlines() if line.startswith("line")] == code.splitlines()


_TEXT = st.text(st.sampled_from("ab \n.`~é🌍\u0301"), max_size=30)


@settings(max_examples=150)
@given(st.lists(_TEXT, max_size=12), st.booleans(), st.sampled_from(["chars", "utf16"]))
@example(["a" * 30] * 9, True, "utf16")
@example(["🌍" * 30] * 9, False, "utf16")
def test_nothing_is_lost_whatever_the_platform_can_do(
    parts: list[str], edits: bool, unit: str
) -> None:
    descriptor = replace(DESCRIPTOR, max_message_length=23, supports_edit=edits, len_unit=unit)
    screen = Screen(descriptor)
    stream(screen, parts, pause=0.4)
    said = "".join(screen.shown.values())
    marks = {ord(each): None for each in " \n`~"}
    said, wanted = said.translate(marks), "".join(parts).translate(marks)
    if "`" in "".join(parts) or "~" in "".join(parts):
        left = iter(said)  # a block that is opened again repeats its opening line
        assert all(each in left for each in wanted)
    else:
        assert said == wanted
    assert all(measure(each, unit) <= 23 for each in screen.shown.values())


def test_without_edits_every_segment_is_a_message_of_its_own() -> None:
    screen = Screen(replace(DESCRIPTOR, supports_edit=False))
    first, second = "First. " * 30, "Second. " * 30
    stream(screen, [first, "\n\n", second, "\n\n", "Last."], pause=2.0)
    assert list(screen.shown.values()) == [first.strip(), second.strip(), "Last."]


def test_short_paragraphs_are_gathered() -> None:
    assert complete_length("One.\n\nTwo.\n\n") == 0
    assert complete_length("x" * SHORT_SEGMENT + "\n\nTwo.\n\nThree") == len(
        "x" * SHORT_SEGMENT + "\n\nTwo.\n\n"
    )


def test_a_long_paragraph_is_cut_after_a_sentence() -> None:
    text = "Some words in a sentence. " * (LONG_SEGMENT // 26 + 2) + "and so"
    assert text[: complete_length(text)].endswith("sentence. ")
    assert complete_length(text) > LONG_SEGMENT - 60


def test_a_segment_never_ends_inside_fenced_code() -> None:
    text = "x" * SHORT_SEGMENT + "\n\n```\ncode\n\nmore\n\n"
    assert complete_length(text) == SHORT_SEGMENT + 2
    assert complete_length(text + "```\n\n") == len(text + "```\n\n")


@given(st.text(st.sampled_from("ab.!? \n`~。"), max_size=2000))
def test_a_segment_is_a_beginning_of_the_text(text: str) -> None:
    assert 0 <= complete_length(text) <= len(text)


@pytest.mark.parametrize(
    "limited",
    [
        Result(False, error="rate limited, retry after 7 s"),
        Result(False, error="slow down", retry_after=7),
        Result(False, error="retry after 2 s", retry_after=7),
    ],
)
def test_a_platform_that_complains_is_left_alone_for_a_while(limited: Result) -> None:
    screen = Screen()
    screen.refuse = [None, limited]
    stream(screen, [f"word{n} " for n in range(150)])
    times = [at for at, _, _ in screen.changes]
    assert times[1] - times[0] >= 7.9
    assert list(screen.shown.values()) == ["".join(f"word{n} " for n in range(150)).rstrip()]


@pytest.mark.parametrize(
    ("error", "limited"),
    [
        ("rate limited", True),
        ("HTTP 429", True),
        ("Too Many Requests: retry after 3", True),
        ("egress declined: not granted", False),
        ("outcome unknown", False),
        ("14290 is no channel", False),
        (None, False),
    ],
)
def test_what_a_complaint_looks_like(error: str | None, limited: bool) -> None:
    assert is_rate_limited(Result(False, error=error)) is limited
    assert is_rate_limited(Result(False, error=error, retry_after=0))
    assert not is_rate_limited(Result(True, error=error, retry_after=3))


def test_a_rate_limit_crosses_the_wire_as_a_number_or_not_at_all() -> None:
    limited = Result(False, error="429", retry_after=2.5)
    assert Result.from_dict(limited.to_dict()) == limited
    assert "retry_after" not in Result(False, error="429").to_dict()
    for odd in (None, "soon", True, -1, 1e300, [3], float("nan")):
        assert Result.from_dict({"success": False, "retry_after": odd}).retry_after is None


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 100)), max_size=50))
def test_the_pause_stays_within_its_bounds(changes: list[tuple[bool, float]]) -> None:
    pace, now = Pace(1.0), 0.0
    for limited, later in changes:
        now += later
        pace.record(Result(False, error="429 retry after 99999") if limited else Result(True), now)
        assert 0.999 <= pace.wait(now) <= 60.001
    for _ in range(8):
        pace.record(Result(True), now)
    assert pace.wait(now) == pytest.approx(1.0)


def test_what_can_no_longer_be_edited_is_said_anew() -> None:
    screen = Screen()
    gone = Result(False, error="no such message")
    screen.refuse = [None, gone, gone, gone, gone]
    stream(screen, [f"word{n} " for n in range(60)])
    assert screen.shown["n1"] == "".join(f"word{n} " for n in range(60)).rstrip()


def test_a_declined_answer_is_not_tried_again_and_again() -> None:
    screen = Screen()
    screen.refuse = [Result(False, error="egress declined: not granted")] * 50
    reply = stream(screen, [f"word{n} " for n in range(50)])
    assert not screen.shown
    assert len(screen.refuse) == 49
    assert reply.refusal is not None


def test_a_platform_that_does_not_name_its_messages_gets_new_ones() -> None:
    class Nameless(Screen):
        def _change(self, name: str, content: str, how: str) -> Result:
            super()._change(name, content, how)
            return Result(True)

    screen = Nameless()
    stream(screen, [f"word{n} " for n in range(50)])
    assert {how for _, how, _ in screen.changes} == {"say"}
    assert " ".join(screen.shown.values()).split() == [f"word{n}" for n in range(50)]


def test_typing_is_shown_while_the_agent_thinks_and_not_while_it_speaks() -> None:
    async def thinking(_: Turn) -> AsyncIterator[str]:
        await asyncio.sleep(12)
        yield "well, "
        await asyncio.sleep(30)
        yield "yes"

    async def scene(connector: Connector, gateway: RelayGateway, _: VirtualClock) -> None:
        await gateway.reached(GatewayState.RUNNING)
        await connector.deliver(message("think"), "b-1")
        await connector.until(lambda: "well, yes" in connector.texts)
        assert len(connector.ops("typing")) == 3
        assert connector.texts == ["well,", "well, yes"]

    virtually(scene, thinking)


def test_a_platform_without_typing_is_asked_once() -> None:
    async def thinking(_: Turn) -> str:
        await asyncio.sleep(60)
        return "yes"

    async def scene(connector: Connector, gateway: RelayGateway, _: VirtualClock) -> None:
        connector.answers = lambda outbound: Result(outbound.action.op != "typing", "x")
        await gateway.reached(GatewayState.RUNNING)
        await connector.deliver(message("think"), "b-1")
        await connector.until(lambda: connector.texts == ["yes"])
        assert len(connector.ops("typing")) == 1

    virtually(scene, thinking, settings=GatewaySettings(apology=None))
