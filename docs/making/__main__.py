"""`python -m docs.making`: write every made page anew.

With `--check` nothing is written: pages that differ from the code are named, and it exits with 1.
With `--columns` Spark is asked first for the columns of the gold tables, which takes a minute.
"""

import argparse
import sys
from pathlib import Path

from docs.making import columns
from docs.making.indexes import DOCS
from docs.making.pages import rendered

from accord.kernel.errors import AccordError


def differing(folder: Path = DOCS) -> list[str]:
    """The pages that are not as the code has them, and pages of the reference that it has not."""
    wanted = rendered()
    there = {file.relative_to(folder).as_posix() for file in (folder / "reference").rglob("*.md")}
    changed = [name for name, text in wanted.items() if _read(folder / name) != text]
    return sorted({*changed, *(there - wanted.keys())})


def write(folder: Path = DOCS) -> list[str]:
    """Write what differs, remove what is no page any more, and say which these were."""
    wanted = rendered()
    names = differing(folder)
    for name in names:
        file = folder / name
        if name in wanted:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(wanted[name], encoding="utf-8")
        else:
            file.unlink()
    return names


def main() -> int:
    """Do what the command line asks for."""
    asked = argparse.ArgumentParser(prog="python -m docs.making", description=__doc__)
    asked.add_argument("--check", action="store_true", help="write nothing; exit 1 on differences")
    asked.add_argument("--columns", action="store_true", help="ask Spark for the columns first")
    given = asked.parse_args()
    try:
        if given.columns:
            columns.write()
        names = differing() if given.check else write()
    except AccordError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    for name in names:
        sys.stdout.write(f"docs/{name} {'differs' if given.check else 'was written'}\n")
    return 1 if given.check and names else 0


def _read(file: Path) -> str | None:
    return file.read_text(encoding="utf-8") if file.is_file() else None


if __name__ == "__main__":
    sys.exit(main())
