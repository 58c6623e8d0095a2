"""The pages that list others: the guides by theme, the decisions by number.

They are made from the pages that there are, by the same rules as the navigation, so that a new page
is on its list as soon as there is one.
"""

import re
from pathlib import Path
from typing import Final

from docs.making.errors import MakingError
from docs.making.markdown import join, table
from docs.making.nav import themes

DOCS: Final = Path(__file__).parent.parent
_TITLE: Final = re.compile(r"^# (.+)$", re.MULTILINE)
_NUMBER: Final = re.compile(r"^\d+[.:]? *")


def guides() -> str:
    """The guides, by theme."""
    folder = DOCS / "guides"
    names = [str(file.relative_to(folder)) for file in folder.rglob("*.md")]
    return join(
        join([f"## {theme}", "\n".join(f"- [{title(folder / name)}]({name})" for name in listed)])
        for theme, listed in themes(names).items()
    )


def decisions() -> str:
    """The decisions, by number."""
    files = sorted(file for file in (DOCS / "decisions").glob("*.md") if file.name != "README.md")
    rows = [(f"[{file.name[:4]}]({file.name})", _NUMBER.sub("", title(file))) for file in files]
    return table(("", "decision"), rows)


def title(page: Path) -> str:
    """The title of a page.

    Raises:
        MakingError: It has none.
    """
    found = _TITLE.search(page.read_text(encoding="utf-8"))
    if found is None:
        raise MakingError("the page has no title", where=page.name, mend="begin it with `# `")
    return found[1]
