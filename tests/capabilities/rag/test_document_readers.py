"""Documents of every kind become text that knows its pages and headings."""

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.capabilities.rag import papers

from accord.capabilities.rag import readers
from accord.capabilities.rag.rules import document_text
from accord.capabilities.rag.rules.document_text import (
    MAX_TEXT,
    DocumentKind,
    DocumentPassage,
    TextDocument,
    clean_text,
    compose,
    decode_text,
    kind_of,
)
from accord.community.errors import Code, CommunityError


def told(document: TextDocument) -> list[tuple[str, int | None, str | None]]:
    return [(each.text, each.page, each.heading) for each in document.passages]


def read(data: bytes) -> TextDocument:
    return readers.READERS[kind_of(data)](data)


def test_the_sections_of_markdown_have_their_headings() -> None:
    document = document_text.read_text(
        "Before\n\n# One #\nfirst\n\nTwo\n---\n\nsecond\n\n```\n# no heading\n```\n"
    )
    assert told(document) == [
        ("Before", None, None),
        ("One\nfirst", None, "One"),
        ("Two\n\nsecond\n\n```\n# no heading\n```", None, "Two"),
    ]
    assert document.title == "One"


def test_plain_text_is_one_passage_without_a_heading() -> None:
    document = document_text.read_text("Only words.\r\nOn two lines.")
    assert told(document) == [("Only words.\nOn two lines.", None, None)]
    assert document.title is None


@pytest.mark.parametrize(
    "line",
    ["#nothing", "####### seven", "a - b\n- - -", "---\ntitle: x", "# ", "x" * 300 + "\n==="],
)
def test_what_only_looks_like_a_heading_is_none(line: str) -> None:
    assert {each.heading for each in document_text.read_text(f"a\n\n{line}\nb").passages} == {None}


def test_a_page_is_read_as_its_reader_sees_it() -> None:
    document = read(
        b"<!DOCTYPE html><html><head><title>The &amp; title</title><style>p{}</style></head><body>"
        b"<nav>Home</nav><h1>First <em>head</em></h1><p>One<br>two &uuml;<script>if (a < b) {}"
        b"</script><table><tr><td>a<td>b</table><h2>Second</h2>three<svg><text>no</text></svg>"
    )
    assert document.title == "The & title"
    assert [(passage.heading, passage.text.split()) for passage in document.passages] == [
        (None, ["Home"]),
        ("First head", ["First", "head", "One", "two", "\u00fc", "a", "b"]),
        ("Second", ["Second", "three"]),
    ]


def test_a_page_without_a_title_is_called_by_its_first_heading() -> None:
    assert document_text.read_html("<h2>Called so</h2>text").title == "Called so"


@pytest.mark.parametrize("charset", ["iso-8859-1", "windows-1252", "utf-8"])
def test_a_page_is_in_the_encoding_that_it_declares(charset: str) -> None:
    page = f'<html><head><meta charset="{charset}"></head><p>gr\u00fcn</p>'
    assert told(read(page.encode(charset))) == [("gr\u00fcn", None, None)]


def test_the_pages_of_a_pdf_are_numbered_and_have_the_headings_of_its_outline() -> None:
    data = papers.pdf(
        ["First page of water-\nworks", "", "Third page", "Fourth page"],
        outline=[("Beginning", 0), ("Later", 2)],
    )
    assert told(read(data)) == [
        ("First page of waterworks", 1, "Beginning"),
        ("Third page", 3, "Later"),
        ("Fourth page", 4, "Later"),
    ]


def test_the_paragraphs_of_a_docx_have_the_headings_that_styles_make() -> None:
    data = papers.docx(
        [
            (None, "Before"),
            ("berschrift1", "One"),
            (None, "first &amp; more"),
            ("Eigene", "Two"),
            (None, "second"),
        ],
        title="Called so",
    )
    document = read(data)
    assert told(document) == [
        ("Before", None, None),
        ("One\n\nfirst & more", None, "One"),
        ("Two\n\nsecond", None, "Two"),
    ]
    assert document.title == "Called so"


def test_a_docx_says_nothing_twice_that_it_offers_in_two_ways() -> None:
    mc = "http://schemas.openxmlformats.org/markup-compatibility/2006"
    raw = (
        f'<w:p><mc:AlternateContent xmlns:mc="{mc}"><mc:Choice><w:t>once</w:t></mc:Choice>'
        "<mc:Fallback><w:t>once</w:t></mc:Fallback></mc:AlternateContent></w:p>"
    )
    assert told(read(papers.docx([(None, "a")], raw=raw))) == [("a\n\nonce", None, None)]


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"%PDF-1.7 ...", DocumentKind.PDF),
        (b"\n\n%PDF-1.4", DocumentKind.PDF),
        (b"PK\x03\x04....", DocumentKind.DOCX),
        (b"\xef\xbb\xbf <!DocType HTML><p>", DocumentKind.HTML),
        (b'<?xml version="1.0"?><html>', DocumentKind.HTML),
        (b"# Words", DocumentKind.TEXT),
        (b"a < b", DocumentKind.TEXT),
        (codecs.BOM_UTF16_LE + "text".encode("utf-16-le"), DocumentKind.TEXT),
        (b"", DocumentKind.TEXT),
    ],
)
def test_a_kind_is_told_by_the_bytes(data: bytes, kind: DocumentKind) -> None:
    assert kind_of(data) is kind


@pytest.mark.parametrize("data", [b"\x00PNG\r\n\x1a\n", b"\x7fELF\x02\x01\x00", b"MZ\x00"])
def test_what_is_no_document_is_an_unsupported_media_type(data: bytes) -> None:
    with pytest.raises(CommunityError, match="unsupported media type") as caught:
        kind_of(data)
    assert caught.value.code is Code.BAD_REQUEST


def test_text_may_bear_a_mark_of_its_encoding() -> None:
    assert decode_text(codecs.BOM_UTF8 + b"text") == "text"
    assert decode_text("gr\u00fcn".encode("utf-16")) == "gr\u00fcn"


@given(st.text())
def test_clean_text_can_be_kept_and_stays_as_it_is(given_text: str) -> None:
    cleaned = clean_text(given_text)
    cleaned.encode()
    assert clean_text(cleaned) == cleaned
    assert "\x00" not in cleaned
    assert "\n\n\n" not in cleaned


@given(st.text(alphabet=st.sampled_from("# =-`~\nab\t")))
def test_reading_text_loses_no_word(given_text: str) -> None:
    try:
        document = document_text.read_text(given_text)
    except CommunityError:
        assert not any(character.isalnum() for character in given_text)
        return
    found = "".join(c for passage in document.passages for c in passage.text if c.isalnum())
    assert found == "".join(character for character in given_text if character.isalnum())


@given(st.text(alphabet=st.sampled_from("<>/!-\"'= &;abhp1[]CDATscript")))
def test_no_page_is_too_odd_to_be_read_or_refused(page: str) -> None:
    try:
        document = document_text.read_html(page)
    except CommunityError as error:
        assert error.code is Code.BAD_REQUEST
    else:
        assert document.passages


def test_too_much_text_is_refused() -> None:
    with pytest.raises(CommunityError, match="characters"):
        compose([DocumentPassage("a" * MAX_TEXT), DocumentPassage("a")])


@pytest.mark.parametrize("nothing", ["", " \n\t ", "\u200b", "--- *** ..."])
def test_text_without_a_word_is_none(nothing: str) -> None:
    with pytest.raises(CommunityError, match="no text") as caught:
        document_text.read_text(nothing)
    assert caught.value.code is Code.BAD_REQUEST
