"""What MkDocs asks while it builds the site: which files there are, their order, and their text.

What lies outside of `docs` and is linked from a page (README, examples, files to deploy) becomes
part of the site below `project`, read where it is. Links are made to lead there.
"""

import posixpath
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parent.parent.parent
# MkDocs loads this file by its path, wherever it was started.
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from docs.making.links import links, relinked  # noqa: E402
from docs.making.lists import respaced  # noqa: E402
from docs.making.nav import OUTSIDE, navigation  # noqa: E402

_ALWAYS: Final = ("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what lies outside of `docs`, and put everything in order."""
    for path in sorted(outside(files)):
        files.append(File.generated(config, f"{OUTSIDE}/{path}", abs_src_path=str(ROOT / path)))
    pages = [file.src_uri for file in files.documentation_pages()]
    config.nav = navigation(pages)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let the links of a page lead to where things are on the site."""
    here = repository_path(page.file.src_uri)
    return respaced(relinked(markdown, lambda target: site_link(here, target)))


def outside(files: Files) -> set[str]:
    """The files outside of `docs` that belong to the site, by their path in the repository."""
    found: set[str] = set()
    new = {path for path in _ALWAYS if (ROOT / path).is_file()}
    new.update(_linked(f"docs/{file.src_uri}" for file in files.documentation_pages()))
    while new:
        found |= new
        new = set(_linked(path for path in new if path.endswith(".md"))) - found
    return found


def repository_path(site_path: str) -> str:
    """Where a file of the site lies in the repository."""
    within = site_path.removeprefix(f"{OUTSIDE}/")
    return within if within != site_path else f"docs/{site_path}"


def site_link(here: str, target: str) -> str:
    """A link as it must be on the site.

    Args:
        here: The page with the link, in the repository.
        target: The link as it is written.
    """
    path, mark, anchor = target.partition("#")
    if not path or ":" in path:
        return target
    there = posixpath.normpath(posixpath.join(posixpath.dirname(here), path))
    start = posixpath.dirname(_site_path(here))
    return posixpath.relpath(_site_path(there), start) + mark + anchor


def _site_path(path: str) -> str:
    return path.removeprefix("docs/") if path.startswith("docs/") else f"{OUTSIDE}/{path}"


def _linked(pages: Iterable[str]) -> Iterator[str]:
    for page in pages:
        folder = posixpath.dirname(page)
        for link in links((ROOT / page).read_text(encoding="utf-8")):
            if link.path and not link.is_external:
                path = posixpath.normpath(posixpath.join(folder, link.path))
                if not path.startswith(("docs/", "..")) and (ROOT / path).is_file():
                    yield path
