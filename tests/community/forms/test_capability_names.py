"""Names, versions and levels have one form each."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.community.errors import CommunityError
from accord.community.rules import CapabilityQuery, Level, Version, capabilities, formats
from accord.kernel.signing import SigningKey

numbers = st.integers(0, 9999)


@given(numbers, numbers, numbers, numbers)
def test_the_major_must_be_equal_and_the_minor_enough(a: int, b: int, x: int, y: int) -> None:
    wanted = CapabilityQuery.parse(f"llm.chat@>={a}.{b}")
    assert wanted.is_met_by("llm.chat", Version(x, y)) == (x == a and y >= b)
    assert not wanted.is_met_by("llm.complete", Version(a, b))
    assert CapabilityQuery.parse(str(wanted)) == wanted


@pytest.mark.parametrize(
    "text", ["", "1", "1.", "01.0", "1.00", "1.0.0", "-1.0", "1.99999", "1.0\n", "\u0661.0", "v1.0"]
)
def test_a_version_has_one_form(text: str) -> None:
    with pytest.raises(CommunityError):
        Version.parse(text)


@pytest.mark.parametrize("text", ["llm.chat", "llm.chat@1.0", "@>=1.0", "llm.chat@>=", "a@>=1.0"])
def test_a_wish_names_a_capability_and_a_version(text: str) -> None:
    with pytest.raises(CommunityError):
        CapabilityQuery.parse(text)


@pytest.mark.parametrize(
    "name", ["llm.chat", "rag.list_corpora", "experimental.a.b.c", "community.x"]
)
def test_names_that_may_be_registered(name: str) -> None:
    assert capabilities.check_registrable(name) == name


@pytest.mark.parametrize(
    "name",
    ["ocr.read", "tts.say", "stt.hear", "trans.late", "img.draw", "federation.join", "garden.dig"],
)
def test_reserved_and_ownerless_prefixes_are_refused_with_a_way_out(name: str) -> None:
    with pytest.raises(CommunityError) as caught:
        capabilities.check_registrable(name)
    assert caught.value.mend == f"register it as experimental.{name}"
    capabilities.check_registrable(f"experimental.{name}")


@pytest.mark.parametrize(
    "name",
    ["", "llm", "LLM.chat", "llm..chat", ".llm", "llm.", "llm.chat ", "l" * 99 + ".c", "llm.1"],
)
def test_other_texts_are_no_names(name: str) -> None:
    with pytest.raises(CommunityError):
        capabilities.check_capability(name)


@given(st.text())
def test_any_text_is_answered(text: str) -> None:
    for question in (
        capabilities.check_registrable,
        Version.parse,
        CapabilityQuery.parse,
        Level.parse,
    ):
        try:
            question(text)
        except CommunityError as error:
            assert str(error)


def test_levels_are_ordered() -> None:
    assert Level.UNKNOWN < Level.MEMBER < Level.TRUSTED < Level.ANCHOR
    assert [Level.parse(level.text) for level in Level] == list(Level)


def test_answers_that_must_be_verified() -> None:
    must = ["market.post", "community.invite", "community.revoke", "rag.ingest", "market.expire"]
    assert all(map(capabilities.must_verify_answer, [*must, "chat.send"]))
    assert not any(map(capabilities.must_verify_answer, ["llm.chat", "market.list", "file.read"]))


def test_an_id_as_people_read_it() -> None:
    shown = formats.display_id(SigningKey.from_seed(bytes(range(32))).id)
    assert shown == "AOQQ-PP7T-ZYIL-4HLQ"
    with pytest.raises(CommunityError):
        formats.display_id("ed25519:short")
