"""Documents are cut by tokens, at good places, into chunks whose ids anybody can compute."""

import itertools
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.capabilities import models
from accord.capabilities.rag import words
from accord.capabilities.rag.rules import chunks
from accord.capabilities.rag.rules.chunks import (
    Chunk,
    ChunkedDocument,
    ChunkSettings,
    chunk_id,
    split,
    to_embed,
)
from accord.capabilities.rag.rules.document_text import DocumentPassage, TextDocument

CID = "blake3:" + "ab" * 32
SMALL = ChunkSettings("words", size=12, overlap=4)
BY_WORDS = words.word_tokens().spans


@st.composite
def texts(draw: st.DrawFn) -> list[str]:
    """Passages in which no word comes twice."""
    numbers = itertools.count()
    signs = st.text(alphabet=st.sampled_from("w. \n"), max_size=40)
    drawn = draw(st.lists(signs.filter(lambda text: text.strip()), min_size=1, max_size=8))
    return [
        "".join(each if each.isspace() else f"w{next(numbers)}{each.strip('w')}" for each in text)
        for text in drawn
    ]


def cut(*said: str, how: ChunkSettings = SMALL) -> ChunkedDocument:
    return split(CID, TextDocument(tuple(DocumentPassage(text) for text in said)), BY_WORDS, how)


def test_a_short_document_is_one_chunk() -> None:
    (chunk,) = cut("One short document.").chunks
    assert (chunk.text, chunk.position, chunk.windows) == (
        "One short document.",
        0,
        ("One short document.",),
    )


def test_chunks_have_at_most_so_many_tokens_and_share_some() -> None:
    words = [f"w{number}" for number in range(100)]
    made = cut(" ".join(words))
    parts = [chunk.text.split() for chunk in made.chunks]
    assert made.tokens == 100
    assert all(len(part) == 12 for part in parts[:-1])
    for before, behind in itertools.pairwise(parts):
        assert before[-4:] == behind[:4]


def test_a_chunk_ends_with_a_paragraph_before_a_sentence_before_a_word() -> None:
    filler = "a " * 9
    assert cut(f"{filler}b\n\nc d. e f g h i").chunks[0].text.endswith("b")
    assert cut(f"{filler}b c. d e f g h i").chunks[0].text.endswith("c.")
    assert cut(f"{filler}b c d e f g h i").chunks[0].text.endswith("d")


def test_a_chunk_knows_where_it_begins() -> None:
    document = TextDocument(
        (
            DocumentPassage("a " * 10, 1, "One"),
            DocumentPassage("b " * 10, 2, "One"),
            DocumentPassage("c " * 10, 3, "Two"),
        )
    )
    made = split(CID, document, BY_WORDS, SMALL).chunks
    for chunk in made:
        page = {"a": 1, "b": 2, "c": 3}[chunk.text[0]]
        assert (chunk.page, chunk.heading) == (page, "Two" if page == 3 else "One")
    assert {chunk.page for chunk in made} == {1, 2, 3}


@given(texts())
def test_every_token_is_in_a_chunk_and_no_chunk_is_too_long(said: list[str]) -> None:
    whole = "\n\n".join(said)
    made = cut(*said)
    place = 0
    for chunk in made.chunks:
        assert len(BY_WORDS(chunk.text)) <= SMALL.size
        begin = whole.index(chunk.text, max(0, place - len(chunk.text)))
        assert not whole[place:begin].strip()
        place = begin + len(chunk.text)
        assert [window for window in chunk.windows if window in chunk.text] == [*chunk.windows]
    assert not whole[place:].strip()
    assert made.tokens == len(BY_WORDS(whole))


@given(texts())
def test_the_same_document_is_cut_the_same_way(said: list[str]) -> None:
    assert cut(*said) == cut(*said)


def test_the_id_of_a_chunk_is_a_known_answer() -> None:
    assert (
        chunk_id(CID, 7, ChunkSettings("all-MiniLM-L6-v2")) == "ch_047d494d151909459916ad240cb300a8"
    )


def test_everything_that_makes_a_chunk_makes_its_id() -> None:
    ways = [
        ChunkSettings("a"),
        ChunkSettings("b"),
        ChunkSettings("a", 900, 200),
        ChunkSettings("a", 1000, 100),
    ]
    ids = {
        chunk_id(cid, position, way)
        for cid in (CID, "blake3:" + "00" * 32)
        for position in range(3)
        for way in ways
    }
    assert len(ids) == 2 * 3 * len(ways)


def test_a_word_without_end_is_cut_too() -> None:
    made = cut("x" * 10_000)
    assert max(len(chunk.text) for chunk in made.chunks) <= 12 * 8
    assert made.tokens == 1250


def test_a_long_text_is_cut_as_if_it_were_tokenized_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = " ".join(f"w{number}" for number in range(3000))
    whole = cut(text)
    monkeypatch.setattr(chunks, "_BLOCK", 100)
    assert cut(text) == whole


def test_windows_are_embedded_behind_what_they_are_about() -> None:
    chunk = Chunk("ch", 0, "Title and more", None, "Head", ("Title and", "more"))
    assert to_embed(chunk, "Title") == ["Title\nHead\nTitle and", "Title\nHead\nmore"]
    bare = Chunk("ch", 0, "Head says", None, "Head", ("Head says",))
    assert to_embed(bare, None) == ["Head says"]
    assert to_embed(bare, "Head") == ["Head says"]


@pytest.mark.parametrize(("size", "overlap"), [(0, 0), (10, 6), (10, -1)])
def test_a_cut_that_would_never_end_is_none(size: int, overlap: int) -> None:
    with pytest.raises(ValueError, match="half"):
        ChunkSettings("words", size, overlap)


def test_the_tokens_of_the_model_are_counted_as_the_model_counts_them() -> None:
    counted = words.model_tokens(models.embedding_model())
    text = "Regenwasser purification, unbelievably \U0001f30a deep."
    spans = counted.spans(text)
    assert all(text[begin:end].strip() for begin, end in spans)
    assert text[spans[0][0] : spans[0][1]] == "Reg"
    assert len(spans) > 12
    made = split(CID, TextDocument((DocumentPassage("word " * 3000),)), counted.spans, counted.cut)
    assert [len(counted.spans(chunk.text)) for chunk in made.chunks] == [1000, 1000, 1000, 600]


def test_cutting_needs_no_server_and_no_store() -> None:
    program = (
        "import sys; from accord.capabilities.rag.rules.chunks import split, chunk_id; "
        "from accord.capabilities.rag.readers import READERS; "
        "heavy = {'asyncio', 'sqlalchemy', 'starlette', 'numpy', 'pypdf'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
