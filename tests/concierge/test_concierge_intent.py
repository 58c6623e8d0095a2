"""What people write, and what the concierge takes it for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.concierge.rules import (
    COMMANDS,
    MAX_BODY,
    MAX_QUESTION,
    MAX_TITLE,
    Ask,
    Category,
    Confirmation,
    ExplainLink,
    FindFile,
    FindPosts,
    Forget,
    Help,
    Incomplete,
    Intent,
    ListFiles,
    NoQuestion,
    PostDraft,
    Unknown,
    read_intent,
    replies,
)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("When is the shed open?", Ask("When is the shed open?")),
        ("  @concierge when is it open? ", Ask("when is it open?")),
        ("<@1234>: when?", Ask("when?")),
        ("@accord /files", ListFiles()),
        ("mail me at ann@example.org", Ask("mail me at ann@example.org")),
        ("/ask who has the key?", Ask("who has the key?")),
        ("/market ladder", FindPosts("ladder")),
        ("/MARKET   a long ladder", FindPosts("a long ladder")),
        ("/market@concierge ladder", FindPosts("ladder")),
        ("/post offer A ladder: 3 metres", PostDraft(Category.OFFER, "A ladder", "3 metres")),
        ("/post Request A drill", PostDraft(Category.REQUEST, "A drill")),
        ("/post info At 10:30: bring cups", PostDraft(Category.INFO, "At 10", "30: bring cups")),
        ("/files", ListFiles()),
        ("/file tool shed", FindFile("tool shed")),
        ("/link", ExplainLink()),
        ("/help link", ExplainLink()),
        ("/help", Help()),
        ("/start", Help()),
        ("/forget", Forget()),
        ("yes", Confirmation(True, "yes")),
        ("No", Confirmation(False, "No")),
        ("/dance now", Unknown("dance")),
        ("/", NoQuestion()),
        ("?!", NoQuestion()),
        ("", NoQuestion()),
        ("/etc/passwd is where?", Ask("/etc/passwd is where?")),
    ],
)
def test_a_message_means(text: str, wanted: Intent) -> None:
    assert read_intent(text) == wanted


@pytest.mark.parametrize(
    "text",
    ["/market", "/file ", "/ask", "/post", "/post offer", "/post offer : body", "/post car x"],
)
def test_what_is_missing_from_a_command_is_told_with_a_whole_example(text: str) -> None:
    asked = read_intent(text)
    assert isinstance(asked, Incomplete)
    assert not isinstance(read_intent(asked.example), Incomplete)


def test_every_command_that_platforms_show_is_understood_and_in_the_help() -> None:
    for command in COMMANDS:
        words = "offer Ladder: long" if command["name"] == "post" else "tool shed"
        asked = read_intent(f"/{command['name']} {words if 'options' in command else ''}")
        assert not isinstance(asked, Unknown | Incomplete)
        assert command["name"] in ("ask", "help") or f"/{command['name']}" in replies.HELP


@given(st.text())
def test_every_text_has_a_meaning_and_a_question_is_never_too_long(text: str) -> None:
    asked = read_intent(text)
    if isinstance(asked, Ask):
        assert 0 < len(asked.question) <= MAX_QUESTION


@given(st.sampled_from(["offer", "request", "info"]), st.text(max_size=400), st.text())
def test_a_draft_always_fits_the_market(kind: str, title: str, body: str) -> None:
    asked = read_intent(f"/post {kind} {title}:{body}")
    assert isinstance(asked, PostDraft | Incomplete)
    if isinstance(asked, PostDraft):
        assert 0 < len(asked.title) <= MAX_TITLE
        assert "\n" not in asked.title
        assert len(asked.body) <= MAX_BODY


def test_a_very_long_message_is_read_at_once() -> None:
    for text in ("@" * 1_000_000, "/" * 1_000_000, "<@" * 500_000, " " * 1_000_000 + "x"):
        read_intent(text)
    asked = read_intent("x" * 1_000_000)
    assert asked == Ask("x" * MAX_QUESTION)
