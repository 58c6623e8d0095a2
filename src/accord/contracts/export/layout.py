"""Names and layout of generated code, stable under `ruff format`.

Identifiers are unique, limited in length and ASCII, because Python normalises other letters. Lists
that could grow too long for one line are written one item per line with a final comma, so no other
line needs breaking.
"""

import inspect
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from keyword import iskeyword
from typing import Any, Final

MAX_LENGTH: Final = 36

_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+", re.ASCII)


def _words(text: str) -> list[str]:
    # An accent is dropped; a character without a Latin letter becomes its number.
    plain = "".join(
        letter if letter.isascii() else f" u{ord(letter):x} "
        for letter in unicodedata.normalize("NFKD", text)
        if not unicodedata.combining(letter)
    )
    return _WORDS.findall(plain)


def class_name(*texts: str) -> str:
    """A class name such as `UserFind`."""
    words = (word for text in texts for word in _words(text))
    name = "".join(word[0].upper() + word[1:] for word in words)[:MAX_LENGTH]
    return name if name[:1].isalpha() else f"T{name}"


def snake_name(text: str) -> str:
    """A method name's suffix such as `user_find`."""
    return "_".join(_words(text)).lower()[:MAX_LENGTH].rstrip("_") or "unnamed"


class UniqueNames:
    """Names of one scope, each used once."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._next: dict[str, int] = {}

    def new(self, wanted: str) -> str:
        """The wanted name, or the first free one with a number."""
        name, number = wanted, self._next.get(wanted, 2)
        while name in self._taken or iskeyword(name):
            name = f"{wanted}_{number}"
            number += 1
        self._next[wanted] = number
        self._taken.add(name)
        return name

    def all(self, wanted: Iterable[tuple[str, str]]) -> dict[str, str]:
        """A name for each key, independent of the order in which they come."""
        return {key: self.new(name) for key, name in sorted(wanted)}


WIDTH: Final = 88
INDENT: Final = " " * 8

_LONGEST_DOC: Final = 68
_SOFT: Final = str.maketrans({'"': "'", "\\": "/"})

_WORD: Final = re.compile(r"(?<![.\w])[A-Za-z_]\w*", re.ASCII)
_STRING: Final = re.compile(r"""(?:"(?:[^"\\\n]|\\.)*+"|'(?:[^'\\\n]|\\.)*+')""")


def fits(line: str) -> bool:
    """Whether a line is short enough."""
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
    """A one-line docstring."""
    if not value.isprintable():
        value = "".join(letter if letter.isprintable() else " " for letter in value)
    line = " ".join(value.translate(_SOFT).split())
    if len(line) > _LONGEST_DOC:
        line = f"{line[:_LONGEST_DOC].rstrip()} ..."
    return f'{indent}"""{line}"""\n'


def documentation(entry: Mapping[str, Any], doc: str) -> str:
    """What the contract's author wrote of an entry, summary first, or else `doc`."""
    docs = entry.get("docs", {})
    texts = ((docs.get(each) or "").strip() for each in ("summary", "markdown"))
    return _readable("\n\n".join(dict.fromkeys(text for text in texts if text))) or doc


def _readable(value: str) -> str:
    """A text without what a docstring cannot have, and without common indentation."""
    plain = "".join(each if each.isprintable() or each == "\n" else " " for each in value)
    lines = inspect.cleandoc(plain.translate(_SOFT).strip()).split("\n")
    return "\n".join(line.rstrip() for line in lines)


def long_docstring(value: str, indent: str = INDENT) -> str:
    """A docstring that keeps the lines of a text."""
    first, *rest = _readable(value).split("\n")
    if not rest:
        return f'{indent}"""{first}"""\n'
    lines = "".join(f"{indent}{line}\n" if line else "\n" for line in rest)
    return f'{indent}"""{first}\n{lines}{indent}"""\n'


def listing(start: str, items: Iterable[str], end: str, indent: str = "") -> str:
    """Items in brackets, one per line."""
    lines = "".join(f"{indent}    {item},\n" for item in items)
    return f"{indent}{start}\n{lines}{indent}{end}\n" if lines else f"{indent}{start}{end}\n"


def tuple_of(start: str, items: Sequence[str]) -> str:
    """`start (items)`, one per line unless there is only one."""
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


@dataclass(frozen=True, slots=True)
class Interface:
    """A contract as code generation sees it."""

    contract: Mapping[str, Any]  # the normalised manifest
    types: Mapping[str, str]  # type names by schema
    methods: Mapping[str, Mapping[str, str]]  # the suffixes of method names, by section and surface

    def entries(self, section: str) -> list[tuple[str, str, Mapping[str, Any]]]:
        """The entries of a section in order: name, method suffix, entry."""
        entries = self.contract.get(section, {})
        return [(name, self.methods[section][name], entries[name]) for name in sorted(entries)]

    def type_of(self, reference: Mapping[str, str] | None) -> str:
        """The type of a schema reference."""
        return "None" if reference is None else f"types.{self.types[reference['schema']]}"


def method_names(contract: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """A suffix for each entry, unique within its section."""
    sections = ("rpc", "operations", "events", "feeds", "jobs", "eventConsumers")
    return {
        section: UniqueNames().all((name, snake_name(name)) for name in contract.get(section, {}))
        for section in sections
    }


def signal_names(operation: Mapping[str, Any]) -> dict[str, str]:
    """A name for each signal of an operation, unique within it."""
    return UniqueNames().all(
        (signal, snake_name(signal)) for signal in operation.get("signals", {})
    )


def method(
    head: str, parameters: Iterable[str], returns: Iterable[str], doc: str, body: str = ""
) -> str:
    """A method with one parameter per line.

    `head` is everything up to the name, such as `async def call_user_find`; `returns` the return
    type, and the types in its brackets if it has any.
    """
    lines = "".join(f"{INDENT}{parameter},\n" for parameter in ("self", *parameters))
    kind, *arguments = returns
    if len(arguments) > 1:
        inner = "".join(f"{INDENT}{argument},\n" for argument in arguments)
        kind += f"[\n{inner}    ]"
    elif arguments:
        kind += f"[{arguments[0]}]"
    return f"\n    {head}(\n{lines}    ) -> {kind}:\n{long_docstring(doc)}{body}"
