"""The page of the TypeScript client: what its package exports, from the comments in its sources.

Sources are formatted by Biome, so a declaration begins at the start of a line, its members are
indented by two spaces, and its body ends with a brace in the first column.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from docs.making.errors import MakingError
from docs.making.markdown import fenced, join, meaning

_SOURCES: Final = Path(__file__).parents[2] / "packages/typescript/src"
_REEXPORT: Final = re.compile(
    r"^export (type )?(\*|\{[^}]*\}) from \"\./(\w+)\.js\";", re.MULTILINE
)
_DECLARED: Final = re.compile(
    r"^(?:/\*\*(?P<said>(?:[^*]|\*(?!/))*)\*/\n)?"
    r"export (?:async )?(?:function\*?|class|interface|type|const) (?P<name>\w+)",
    re.MULTILINE,
)
_COMMENT: Final = r"/\*\*(?:[^*]|\*(?!/))*\*/\n"
_MEMBER: Final = re.compile(
    rf"^(?P<said>  {_COMMENT})?"
    r"  (?P<head>(?!private |(?:readonly |async )?\*?#|constructor|/)[\w\[])",
    re.MULTILINE,
)
# `readonly` parameters of a constructor are members, too.
_PARAMETER: Final = re.compile(
    rf"^(?:  (?P<said>  {_COMMENT}))?    (?P<told>readonly \w+\??: [^=\n]+?)(?: = .+)?,$",
    re.MULTILINE,
)
_IMPLEMENTATION: Final = re.compile(r"\b(?:async|override) \*?")


class Export(NamedTuple):
    """A name that the package exports: what it is, and its declaration."""

    name: str
    said: str
    declaration: str


def render() -> str:
    """Every export with its comment and its declaration."""
    return join(
        join([f"## {each.name}", each.said, fenced(each.declaration)])
        for each in sorted(exports(), key=lambda each: each.name.lower())
    )


def exports(folder: Path = _SOURCES) -> Iterator[Export]:
    """What `index.ts` exports; raises MakingError for an export that nothing explains."""
    index = (folder / "index.ts").read_text(encoding="utf-8")
    for _, names, module in _REEXPORT.findall(index):
        source = (folder / f"{module}.ts").read_text(encoding="utf-8")
        declared = {found["name"]: found for found in _DECLARED.finditer(source)}
        listed = list(declared) if names == "*" else names.strip("{} \n").rstrip(",").split(",")
        for each in listed:
            inner, _, outer = each.strip().removeprefix("type ").partition(" as ")
            if inner not in declared:
                raise MakingError("its declaration is not found", where=f"{module}.ts: {inner}")
            found = declared[inner]
            said = " ".join(line.strip(" *") for line in (found["said"] or "").splitlines())
            text = _declaration(source[found.start("name") :], source[: found.start("name")])
            yield Export(
                outer or inner,
                meaning(said, f"{module}.ts: {inner}"),
                text.replace(inner, outer, 1) if outer else text,
            )


def _declaration(rest: str, before: str) -> str:
    """A declaration without what implements it."""
    kind = before[before.rindex("export ") :].removeprefix("export ").replace("async ", "")
    kind = kind.replace("function*", "function")
    if kind.startswith(("function", "class")):
        head, body = _split(rest)
        text = f"{kind}{head}"
        if kind.startswith("function"):
            return f"{text};"
        return "\n".join([f"{text} {{", *_members(body.partition("\n}")[0]), "}"])
    end = rest.index("\n}") + 2 if kind.startswith("interface") else rest.index(";\n") + 1
    return kind + rest[:end]


def _members(body: str) -> Iterator[str]:
    """The public members of a class, each with its comment."""
    for found in _PARAMETER.finditer(body):
        yield f"{found['said'] or ''}  {found['told']};"
    for found in _MEMBER.finditer(body):
        head, _ = _split(body[found.start("head") :])
        told = _IMPLEMENTATION.sub("", head.removesuffix(";"))
        yield f"{found['said'] or ''}  {told};"


def _split(text: str) -> tuple[str, str]:
    """A head up to its body, or up to its semicolon; and what follows."""
    depth = 0
    for at, character in enumerate(text):
        depth += (character in "([{<") - (character in ")]}" or _closes(text, at))
        if character == ";" and depth == 0:
            return text[: at + 1], text[at + 1 :]
        if text.startswith(" {\n", at) and depth == 0:
            return text[:at], text[at + 3 :]
    return text, ""


def _closes(text: str, at: int) -> bool:
    """Whether there is the end of type parameters, and no arrow."""
    return text[at] == ">" and text[at - 1] != "="
