"""How generated code is laid out: as `ruff format` with its defaults leaves it.

Brackets that hold several things are written one to a line with a final comma, which a formatter
keeps, wherever the one-line form could grow too long; so no line has to be broken anywhere else.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final

WIDTH: Final = 88

_LONGEST_DOC: Final = 68
_SOFT: Final = str.maketrans({'"': "'", "\\": "/"})

_WORD: Final = re.compile(r"(?<![.\w])[A-Za-z_]\w*", re.ASCII)
_STRING: Final = re.compile(r"""(?:"(?:[^"\\\n]|\\.)*+"|'(?:[^'\\\n]|\\.)*+')""")


def fits(line: str) -> bool:
    """Whether a line needs no breaking."""
    if line.isascii():
        return len(line) <= WIDTH
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in line)
    return len(line) + wide <= WIDTH


def text(value: str) -> str:
    """A string literal, in the quotes that need fewer escapes."""
    if value.isascii() and value.isprintable() and '"' not in value and "\\" not in value:
        return f'"{value}"'
    quote = "'" if value.count('"') > value.count("'") else '"'
    return quote + "".join(_character(letter, quote) for letter in value) + quote


def _character(letter: str, quote: str) -> str:
    if letter in (quote, "\\"):
        return f"\\{letter}"
    if letter.isprintable() and not unicodedata.combining(letter):
        return letter
    number = ord(letter)
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def used(names: Iterable[str], code: str) -> list[str]:
    """Which of the names occur in code, outside strings."""
    words = set(_WORD.findall(_STRING.sub("", code)))
    return [name for name in names if name in words]


def docstring(value: str, indent: str = "    ") -> str:
    """A docstring of one line."""
    if not value.isprintable():
        value = "".join(letter if letter.isprintable() else " " for letter in value)
    line = " ".join(value.translate(_SOFT).split())
    if len(line) > _LONGEST_DOC:
        line = f"{line[:_LONGEST_DOC].rstrip()} ..."
    return f'{indent}"""{line}"""\n'


def listing(start: str, items: Iterable[str], end: str, indent: str = "") -> str:
    """Things in brackets, one to a line."""
    lines = "".join(f"{indent}    {item},\n" for item in items)
    return f"{indent}{start}\n{lines}{indent}{end}\n" if lines else f"{indent}{start}{end}\n"


def tuple_of(start: str, items: Sequence[str]) -> str:
    """`start (items)`, one to a line unless there is just one."""
    if len(items) == 1 and fits(f"{start}({items[0]},)"):
        return f"{start}({items[0]},)\n"
    return listing(f"{start}(", items, ")")


def subscript(start: str, head: str, arguments: Sequence[str], end: str = "") -> str:
    """`start head[arguments] end` on one line if that fits, else with the arguments below."""
    indent = start[: len(start) - len(start.lstrip())]
    line = f"{start}{head}[{', '.join(arguments)}]{end}"
    if fits(line):
        return f"{line}\n"
    if len(arguments) == 1:  # a comma would make a tuple of it
        return f"{start}{head}[\n{indent}    {arguments[0]}\n{indent}]{end}\n"
    return listing(start.lstrip() + head + "[", arguments, f"]{end}", indent)


def union(start: str, parts: Sequence[str]) -> str:
    """`start a | b` on one line if that fits, else in brackets."""
    joined = " | ".join(parts)
    if fits(start + joined):
        return f"{start}{joined}\n"
    if fits(f"    {joined}"):
        return f"{start}(\n    {joined}\n)\n"
    rest = "".join(f"    | {part}\n" for part in parts[1:])
    return f"{start}(\n    {parts[0]}\n{rest})\n"
