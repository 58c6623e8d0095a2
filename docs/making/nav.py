"""The navigation of the site: which pages stand where, by rules over the pages there are.

Pure. A page that no rule names stands at the end of its section, so that every page can be reached.
"""

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatch
from typing import Final, TypeAlias

Entry: TypeAlias = "str | Mapping[str, str | Sequence[Entry]]"

OUTSIDE: Final = "project"
"""The folder of the site with what lies outside of `docs`."""

_INDEXES: Final = ("index.md", "README.md")
_MORE: Final = "More"
_THEMES: Final = {
    "In a community": (
        "community", "*invite*", "*friend*", "*revoke*", "chat", "files", "market", "rag", "models",
        "media", "doors",
    ),
    "Agents in chats": (
        "relay", "agents", "self-service", "many-tenants", "open-mode", "webchat", "concierge",
        "platforms/*",
    ),
    "Services under contracts": (
        "contracts", "contract-*", "write-a-service", "several-instances", "typescript", "http",
        "authority", "bridge",
    ),
    "History on Spark": ("pipeline", "pipeline-*", "whatif"),
    "Keeping it running": (
        "demo", "deploy/index", "deploy/*", "monitoring", "traces", "*backup*", "*restore*",
        "upgrade", "scripts", "troubleshooting",
    ),
}  # fmt: skip
_REFERENCE: Final = (
    "index", "cli", "settings", "metrics", "http", "fabric", "typescript", "errors", "events",
    "fold-rules", "capabilities", "frames", "gate-rules", "contract-rules", "imports", "tables",
)  # fmt: skip
_PROJECT: Final = (
    f"{OUTSIDE}/README.md",
    f"{OUTSIDE}/ARCHITECTURE.md",
    "glossary.md",
    "security.md",
    "benchmarks.md",
    f"{OUTSIDE}/CHANGELOG.md",
    f"{OUTSIDE}/CONTRIBUTING.md",
    f"{OUTSIDE}/SECURITY.md",
)


class _Pages:
    """Pages that are taken one rule after the other, each once."""

    def __init__(self, names: Iterable[str]) -> None:
        self._left = sorted(names, key=_index_first)

    def take(self, *patterns: str) -> list[str]:
        """Those that a rule names, in the order of the rules."""
        taken = dict.fromkeys(
            page for rule in patterns for page in self._left if fnmatch(page, rule)
        )
        self._left = [page for page in self._left if page not in taken]
        return list(taken)


def themes(guides: Iterable[str]) -> dict[str, list[str]]:
    """The guides by theme, but for the index; their names are paths below `guides`."""
    pages = _Pages(guides)
    pages.take("index.md")
    found = {
        theme: pages.take(*(f"{name}.md" for name in names)) for theme, names in _THEMES.items()
    }
    found[_MORE] = pages.take("*")
    return {theme: listed for theme, listed in found.items() if listed}


def navigation(names: Iterable[str]) -> list[Entry]:
    """The navigation of the site from the path of every page."""
    pages = _Pages(names)
    first = [
        *({"Home": page} for page in pages.take("index.md")),
        *({"Tutorial": page} for page in pages.take("tutorial.md")),
    ]
    sections: dict[str, list[Entry]] = {
        "Guides": _guides(pages.take("guides/*")),
        "Concepts": [*pages.take("concepts/*")],
        "Reference": _reference(
            pages.take(*(f"reference/{name}.md" for name in _REFERENCE), "reference/*")
        ),
        "Decisions": [*pages.take("decisions/*")],
        "Project": [*pages.take(*_PROJECT), *pages.take("*")],
    }
    return [*first, *({title: entries} for title, entries in sections.items() if entries)]


def _guides(pages: Sequence[str]) -> list[Entry]:
    within = [page.removeprefix("guides/") for page in pages]
    entries: list[Entry] = [page for page in pages if page == "guides/index.md"]
    for theme, listed in themes(within).items():
        entries.append({theme: _foldered(listed)})
    return entries


def _foldered(names: Sequence[str]) -> list[Entry]:
    """Guides, with those of a folder below its name, where its index belongs."""
    folders: dict[str, list[Entry]] = {}
    entries: list[Entry] = []
    for name in names:
        folder = name.rpartition("/")[0]
        if folder and folder not in folders:
            folders[folder] = []
            entries.append({folder.capitalize(): folders[folder]})
        folders.get(folder, entries).append(f"guides/{name}")
    return entries


def _reference(pages: Sequence[str]) -> list[Entry]:
    station = "reference/cli/station.md"
    nouns = [page for page in pages if page.startswith("reference/cli/")]
    nouns.sort(key=lambda page: (page != station, page))
    return [
        {"The command line": [page, *nouns]} if page == "reference/cli.md" else page
        for page in pages
        if page not in nouns
    ]


def _index_first(page: str) -> tuple[str, bool, str]:
    folder, _, name = page.rpartition("/")
    return folder, name not in _INDEXES, name
