"""Documents made for tests: PDF and DOCX files with given pages and paragraphs."""

import zipfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from accord.storage import Store

_W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"

RAIN = (
    "# Notfall-Trinkwasser\n\nRegenwasser kann durch Filtration und Abkochen gereinigt werden. "
    "Ein Filter aus Sand und Kohle entfernt Schwebstoffe.\n\n"
    "## Lagerung\n\nSauberes Wasser wird dunkel und k\u00fchl gelagert.\n"
)
POWER = (
    "# Stromausfall\n\nBei einem Stromausfall hilft ein Notstromaggregat. Es darf nur im Freien "
    "betrieben werden, da die Abgase giftig sind.\n"
)
BREAD = (
    "# Baking bread\n\nThe baker kneads the dough for ten minutes and lets it rest. "
    "Loaves are baked in a hot oven.\n"
)


def pdf(pages: Sequence[str], *, outline: Sequence[tuple[str, int]] = ()) -> bytes:
    """A PDF whose pages say something, each line where it is."""
    from pypdf import PdfWriter
    from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

    writer = PdfWriter()
    font = DictionaryObject(
        {
            NameObject("/Type"): NameObject("/Font"),
            NameObject("/Subtype"): NameObject("/Type1"),
            NameObject("/BaseFont"): NameObject("/Helvetica"),
        }
    )
    fonts = DictionaryObject({NameObject("/F1"): font})
    for text in pages:
        page = writer.add_blank_page(300, 400)
        if not text:
            continue
        lines = "".join(f"({line}) Tj 0 -14 Td " for line in text.split("\n"))
        content = DecodedStreamObject()
        content.set_data(f"BT /F1 12 Tf 20 380 Td {lines}ET".encode("latin-1"))
        page[NameObject("/Contents")] = content
        page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
    for title, number in outline:
        writer.add_outline_item(title, number)
    out = BytesIO()
    writer.write(out)
    return out.getvalue()


def docx(paragraphs: Sequence[tuple[str | None, str]], *, title: str = "", raw: str = "") -> bytes:
    """A DOCX with paragraphs of styles.

    Args:
        paragraphs: The style and the text of each.
        title: What the file says of itself.
        raw: What stands in the body besides.
    """
    body = "".join(
        "<w:p>"
        + (f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else "")
        + f"<w:r><w:t>{text}</w:t></w:r></w:p>"
        for style, text in paragraphs
    )
    styles = (
        f'<w:styles xmlns:w="{_W}"><w:style w:styleId="berschrift1"><w:name w:val="heading 1"/>'
        '</w:style><w:style w:styleId="Eigene"><w:name w:val="Eigene"/><w:pPr>'
        '<w:outlineLvl w:val="1"/></w:pPr></w:style></w:styles>'
    )
    core = (
        '<cp:coreProperties xmlns:cp="http://schemas.openxmlformats.org/package/2006/metadata/'
        'core-properties" xmlns:dc="http://purl.org/dc/elements/1.1/">'
        f"<dc:title>{title}</dc:title></cp:coreProperties>"
    )
    return archive(
        {
            "[Content_Types].xml": b"<Types/>",
            "word/document.xml": (
                f'<w:document xmlns:w="{_W}"><w:body>{body}{raw}</w:body></w:document>'
            ).encode(),
            "word/styles.xml": styles.encode(),
            "docProps/core.xml": core.encode(),
        }
    )


def archive(files: dict[str, bytes]) -> bytes:
    out = BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in files.items():
            made.writestr(name, content)
    return out.getvalue()


def docx_bomb() -> bytes:
    """A file of some hundred kilobytes whose body would be half a gigabyte."""
    out = BytesIO()
    with (
        zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as made,
        made.open("word/document.xml", "w", force_zip64=True) as body,
    ):
        body.write(f'<w:document xmlns:w="{_W}"><w:body>'.encode())
        part = b"<w:p><w:r><w:t>" + b"bomb " * 200_000 + b"</w:t></w:r></w:p>"
        for _ in range(512):
            body.write(part)
    return out.getvalue()


def entity_bomb() -> bytes:
    """A DOCX whose text would double thirty times."""
    entities = "".join(f'<!ENTITY e{n} "&e{n - 1};&e{n - 1};">' for n in range(1, 31))
    body = f'<!DOCTYPE x [<!ENTITY e0 "bomb">{entities}]><x>&e30;</x>'
    return archive({"word/document.xml": body.encode()})


async def rows_of(store: Store) -> dict[str, int]:
    """How many rows the tables have."""
    from sqlalchemy import func, select

    from accord.capabilities.rag import tables

    return await store.read(
        lambda c: {
            table.name: c.scalar(select(func.count()).select_from(table)) or 0
            for table in (tables.documents, tables.chunks, tables.standing)
        }
    )


def write(folder: Path, name: str, data: bytes | str) -> Path:
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path
