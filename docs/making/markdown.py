"""The few forms that the reference pages consist of: cells, tables, code, sentences. Pure.

A text that has to explain something passes through `meaning`, which refuses an empty one; this is
what keeps everything in the reference explained.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from docs.making.errors import MakingError

_ATTRIBUTE: Final = re.compile(r"^    (\w+): (.+(?:\n {5,}\S.*)*)", re.MULTILINE)


def meaning(text: str | None, of: str) -> str:
    """The text, on one line.

    Raises:
        MakingError: There is none.
    """
    told = " ".join((text or "").split())
    if not told:
        raise MakingError(
            "it has no sentence of meaning",
            where=of,
            mend="give it a description, a help text or a docstring where it is declared",
        )
    return told


def sentence(text: str) -> str:
    """A clause as a sentence."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!", ":")) else ".")


def code(text: object) -> str:
    """A text in code style, whatever is in it."""
    written = str(text)
    fence = "``" if "`" in written else "`"
    space = " " if written.startswith("`") or written.endswith("`") else ""
    return f"{fence}{space}{written}{space}{fence}"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; every cell on one line, with its bars escaped."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def fenced(text: str, language: str = "text") -> str:
    """A block of code."""
    return f"```{language}\n{text.rstrip()}\n```"


def join(parts: Iterable[str], between: str = "\n\n") -> str:
    """Parts of a page with an empty line between them; empty ones are left out."""
    return between.join(part for part in parts if part)


def bounds(low: object, high: object) -> str:
    """Between what a number lies, where there is such a bound."""
    if low is not None and high is not None:
        return f"{low} to {high}"
    return f"≥ {low}" if low is not None else f"≤ {high}" if high is not None else ""


def attributes(docstring: str | None) -> dict[str, str]:
    """What the section `Attributes:` of a docstring says, by name."""
    return dict(_sections(docstring or ""))


def _sections(docstring: str) -> Iterator[tuple[str, str]]:
    _, _, listed = docstring.partition("Attributes:\n")
    for name, text in _ATTRIBUTE.findall(_dedented(listed)):
        yield name, " ".join(text.split())


def _dedented(listed: str) -> str:
    # Docstrings of classes are indented once more than those of modules.
    return re.sub(r"^ {8}", "    ", listed, flags=re.MULTILINE)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
