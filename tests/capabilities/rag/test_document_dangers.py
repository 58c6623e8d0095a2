"""A document that is damaged, hostile or no document is refused, in bounded time and memory."""

import asyncio
import zipfile
from io import BytesIO

import pytest
from tests.capabilities.rag import papers

from accord.capabilities.rag import documents, readers
from accord.capabilities.rag.rules.document_text import TextDocument
from accord.community.errors import Code, CommunityError


async def refused(data: bytes, *, seconds: float = documents.SECONDS) -> str:
    with pytest.raises(CommunityError) as caught:
        await documents.parse(data, seconds=seconds)
    assert caught.value.code is Code.BAD_REQUEST
    return str(caught.value)


async def test_what_a_process_reads_is_what_a_reader_reads() -> None:
    data = papers.pdf(["One page", "Another"], outline=[("Head", 0)])
    document = await documents.parse(data)
    assert isinstance(document, TextDocument)
    assert [each.page for each in document.passages] == [1, 2]
    assert document.passages[0].heading == "Head"


async def test_a_pdf_of_pictures_has_no_text() -> None:
    assert "no text" in await refused(papers.pdf([""] * 500))


async def test_an_archive_is_no_pdf_whatever_it_is_called() -> None:
    assert "unsupported media type" in await refused(papers.archive({"paper.pdf": b"%PDF-1.7"}))


async def test_a_docx_that_would_unpack_without_end_is_refused() -> None:
    assert "too long once it is unpacked" in await refused(papers.docx_bomb())


async def test_entities_are_not_unfolded() -> None:
    assert "DTDForbidden" in await refused(papers.entity_bomb())


async def test_a_docx_that_lies_about_its_size_is_read_no_further(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(readers, "MAX_XML", 1000)
    honest = papers.docx([(None, "word " * 1000)])
    with zipfile.ZipFile(BytesIO(honest)) as archive:
        size = archive.getinfo("word/document.xml").file_size
    lying = honest.replace(size.to_bytes(4, "little"), (10).to_bytes(4, "little"))
    for data in (honest, lying):
        with pytest.raises(CommunityError) as caught:
            readers.read_docx(data)
        assert caught.value.code is Code.BAD_REQUEST


@pytest.mark.parametrize("cut", [10, 100, 400])
async def test_half_a_file_is_damaged(cut: int) -> None:
    for whole in (papers.pdf(["Some text"]), papers.docx([(None, "Some text")])):
        await refused(whole[:cut])


async def test_a_locked_pdf_is_refused() -> None:
    from pypdf import PdfReader, PdfWriter

    writer = PdfWriter(clone_from=PdfReader(BytesIO(papers.pdf(["secret"]))))
    writer.encrypt("a password", algorithm="RC4-128")
    out = BytesIO()
    writer.write(out)
    assert "password" in await refused(out.getvalue())


async def test_html_may_nest_as_deep_as_it_likes() -> None:
    deep = b"<html>" + b"<div>" * 100_000
    assert "no text" in await refused(deep)
    assert (await documents.parse(deep + b"found")).passages[0].text == "found"


async def test_what_takes_too_long_is_ended_and_leaves_no_process() -> None:
    # Each of these lets the library look at all that follows.
    endless = b"<html>" + b"<!--" * 400_000
    assert "within 0.8 seconds" in await refused(endless, seconds=0.8)


async def test_what_takes_too_much_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_WORKER", "tests.capabilities.rag.greedy_worker")
    assert "too much time or memory" in await refused(b"<html>")


async def test_a_caller_that_leaves_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_WORKER", "tests.capabilities.rag.sleeping_worker")
    started: asyncio.Queue[asyncio.subprocess.Process] = asyncio.Queue()
    start = asyncio.create_subprocess_exec

    async def noted(*given: str, **options: object) -> asyncio.subprocess.Process:
        process = await start(*given, **options)  # type: ignore[arg-type]
        started.put_nowait(process)
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", noted)
    reading = asyncio.create_task(documents.parse(b"<html>"))
    process = await started.get()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert process.returncode == -9


@pytest.mark.parametrize("data", [b"ab\xff\xfecd", b"\x80", "gr\u00fcn".encode("latin-1")])
async def test_text_that_is_not_utf_8_is_refused(data: bytes) -> None:
    assert "not UTF-8" in await refused(data)


async def test_a_file_that_is_too_long_is_not_even_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(documents, "MAX_BYTES", 100)
    assert "more than 100 bytes" in await refused(b"word " * 21)
