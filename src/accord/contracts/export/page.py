"""The Markdown page of a contract, for reviewers, callers and the console.

Authored documentation is copied unchanged, so a viewer must render Markdown safely.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from accord.contracts.manifest import digest, normalize

_BACKTICKS: Final = re.compile(r"`+")
_SURFACES: Final = {
    "rpc": ("RPCs", ("input", "output")),
    "operations": ("Operations", ("input", "progress", "output")),
    "events": ("Events", ("event",)),
    "feeds": ("Feeds", ("input", "event")),
}
_ENTRIES: Final = {
    "eventConsumers": "Event consumers",
    "jobs": "Jobs",
    "state": "State",
}


def render_page(contract: Mapping[str, Any]) -> str:
    """The page of a contract; raises ContractError with findings."""
    named = digest(contract)
    return "\n".join(_lines(normalize(contract), named)) + "\n"


def _lines(contract: Mapping[str, Any], named: str) -> Iterator[str]:
    yield f"# {_text(contract['displayName'] or contract['id'])}"
    yield f"\n{_code(contract['id'])}, {contract['kind']}, digest {_code(named)}"
    yield f"\n{_text(contract['description'])}"
    yield from _authored(contract)
    yield from _capabilities(contract.get("capabilities", {}))
    yield from _uses(contract.get("uses", {}))
    for section, (heading, parts) in _SURFACES.items():
        yield from _surfaces(heading, parts, contract.get(section, {}))
    for section, heading in _ENTRIES.items():
        yield from _entries(heading, contract.get(section, {}))
    resources = contract.get("resources", {})
    yield from _entries("Key-value buckets", resources.get("kv", {}))
    yield from _entries("Object stores", resources.get("store", {}))
    yield from _entries("Errors", contract.get("errors", {}))
    for name, schema in _heading("Schemas", contract.get("schemas", {})):
        yield name
        yield from _block(schema)


def _capabilities(declared: Mapping[str, Any]) -> Iterator[str]:
    if declared:
        yield "\n## Capabilities\n"
        yield from _table(
            ("capability", "name", "what it allows"),
            (
                (
                    _code(key),
                    _text(texts["displayName"]),
                    _text(" ".join((texts["description"], texts.get("consequence", "")))),
                )
                for key, texts in sorted(declared.items())
            ),
        )


def _uses(declared: Mapping[str, Any]) -> Iterator[str]:
    rows = [
        (
            _code(alias),
            _code(use["contract"]),
            group,
            ", ".join(
                f"{action} {_code(name)}"
                for lists in (use.get(section, {}) for section in _SURFACES)
                for action, names in lists.items()
                for name in names
            ),
        )
        for group in ("required", "optional")
        for alias, use in sorted(declared.get(group, {}).items())
    ]
    if rows:
        yield "\n## Uses\n"
        yield from _table(("alias", "contract", "", "what is used"), rows)


def _surfaces(heading: str, parts: Sequence[str], declared: Mapping[str, Any]) -> Iterator[str]:
    for name, surface in _heading(heading, declared):
        yield name
        rows = [("subject", _code(surface["subject"])), ("version", _code(surface["version"]))]
        rows += [(part, _code(surface[part]["schema"])) for part in parts if part in surface]
        rows += [
            (f"signal {_code(signal)}", _code(declared_signal["input"]["schema"]))
            for signal, declared_signal in sorted(surface.get("signals", {}).items())
        ]
        rows += [
            (f"may {action}", _codes(needed) or "every authenticated caller")
            for action, needed in surface.get("capabilities", {}).items()
        ]
        if "errors" in surface:
            rows.append(("errors", _codes(error["type"] for error in surface["errors"])))
        rows += [
            (member, _code(json.dumps(surface[member], ensure_ascii=False)))
            for member in ("cancel", "transfer")
            if member in surface
        ]
        yield from _table(("", ""), rows)
        yield from _authored(surface)


def _entries(heading: str, declared: Mapping[str, Any]) -> Iterator[str]:
    for name, entry in _heading(heading, declared):
        yield name
        yield from _block({key: value for key, value in entry.items() if key != "docs"})
        yield from _authored(entry)


def _heading(heading: str, declared: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each entry of a section, after its headings."""
    above = f"\n## {heading}\n"
    for name in sorted(declared):
        yield f"{above}\n### {_code(name)}\n", declared[name]
        above = ""


def _authored(entry: Mapping[str, Any]) -> Iterator[str]:
    docs = entry.get("docs", {})
    for member in ("summary", "markdown"):
        if docs.get(member):
            yield f"\n{docs[member]}"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


def _block(value: Any) -> Iterator[str]:
    written = json.dumps(value, ensure_ascii=False, indent=2)
    fence = _fence(written, 3)
    yield f"{fence}json\n{written}\n{fence}"


def _code(text: str) -> str:
    plain = " ".join(text.split())
    fence = _fence(plain, 1)
    space = " " if plain.startswith("`") or plain.endswith("`") else ""
    return f"{fence}{space}{plain}{space}{fence}" if plain else ""


def _codes(names: Iterable[str]) -> str:
    return ", ".join(map(_code, names))


def _fence(text: str, least: int) -> str:
    longest = max((len(run) for run in _BACKTICKS.findall(text)), default=0)
    return "`" * max(least, longest + 1)


def _text(text: str) -> str:
    """Escape a text for one line of Markdown."""
    return re.sub(r"([\\`*_\[\]<>#])", r"\\\1", " ".join(text.split()))
