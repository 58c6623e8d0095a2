"""`python -m docs.making.messages`: bring the catalogues of the console up to date.

Every message of the code and the templates is in each catalogue, those that nothing says any more
are gone, and the binary form is made of the text. With `--check` nothing is written; what is
missing or not translated is named.
"""

import argparse
import io
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from babel.messages.catalog import Catalog
from babel.messages.extract import extract
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po

import accord.console
from accord.console.messages import ENGLISH, LANGUAGES

CONSOLE: Final = Path(accord.console.__file__).parent
LOCALE: Final = CONSOLE / "locale"
_KEYWORDS: Final[dict[str, Any]] = {"tr": None, "mark": None, "trn": (1, 2), "_": None}
_TEMPLATES: Final = {"extensions": "jinja2.ext.i18n", "trimmed": "true", "silent": "false"}
_HEADER: Final = "# The messages of the console; `make messages` brings them up to date."
# The files say nothing of when they were made, so that making them anew changes nothing.
_NO_TIME: Final = datetime(2026, 1, 1, tzinfo=UTC)


def messages() -> Catalog:
    """Every message of the console, with the files that have it."""
    found = Catalog()
    for file in sorted(CONSOLE.rglob("*")):
        if file.suffix not in (".py", ".html"):
            continue
        is_template = file.suffix == ".html"
        method = "jinja2.ext:babel_extract" if is_template else "python"
        # Functions of templates are gettext's own.
        keywords = {"_": None, "gettext": None, "ngettext": (1, 2)} if is_template else _KEYWORDS
        with file.open("rb") as opened:
            options = _TEMPLATES if is_template else {}
            for _, message, _, _ in extract(method, opened, keywords, (), options):
                found.add(message, locations=[(file.relative_to(CONSOLE).as_posix(), 0)])
    return found


def updated(code: str) -> Catalog:
    """The catalogue of a language with the messages of now; new ones are not translated."""
    file = LOCALE / f"{code}.po"
    known = Catalog(code)
    if file.is_file():
        with file.open("rb") as opened:
            known = read_po(opened, locale=code)
    made = Catalog(
        code,
        header_comment=_HEADER,
        project="accord",
        version="",
        charset="utf-8",
        creation_date=_NO_TIME,
        revision_date=_NO_TIME,
        fuzzy=False,
    )
    for each in messages():
        if not each.id:
            continue
        there = known.get(each.id)
        several = isinstance(each.id, tuple)
        text = there.string if there is not None else ("", "") if several else ""
        made.add(each.id, text, locations=each.locations, flags=each.flags)
    return made


def rendered(catalogue: Catalog) -> tuple[bytes, bytes]:
    """A catalogue as text and in its binary form."""
    text, binary = io.BytesIO(), io.BytesIO()
    write_po(text, catalogue, width=100, include_lineno=False, sort_output=True, omit_header=False)
    write_mo(binary, catalogue)
    return text.getvalue(), binary.getvalue()


def untranslated(catalogue: Catalog) -> Iterator[str]:
    """The messages that a catalogue has no text, or not every form, for."""
    for each in catalogue:
        forms = each.string if isinstance(each.string, tuple) else (each.string,)
        if each.id and not all(forms):
            yield each.id if isinstance(each.id, str) else each.id[0]


def main() -> int:
    """Do what the command line asks for."""
    asked = argparse.ArgumentParser(prog="python -m docs.making.messages", description=__doc__)
    asked.add_argument("--check", action="store_true", help="write nothing; exit 1 on differences")
    is_check = asked.parse_args().check
    wrong = 0
    for code in LANGUAGES:
        if code == ENGLISH:
            continue
        catalogue = updated(code)
        for suffix, content in zip((".po", ".mo"), rendered(catalogue), strict=True):
            file = LOCALE / f"{code}{suffix}"
            if file.is_file() and file.read_bytes() == content:
                continue
            wrong += 1
            sys.stdout.write(f"{file.name} {'differs' if is_check else 'was written'}\n")
            if not is_check:
                file.write_bytes(content)
        for message in untranslated(catalogue):
            sys.stdout.write(f"not translated into {LANGUAGES[code]}: {message}\n")
            wrong += is_check
    return 1 if is_check and wrong else 0


if __name__ == "__main__":
    sys.exit(main())
