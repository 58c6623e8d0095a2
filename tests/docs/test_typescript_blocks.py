"""The TypeScript that pages print compiles against the packages that the guide generates."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.docs.pages import Command, steps
from tests.docs.reading import ROOT
from tests.fabric.typescript_build import FABRIC, Workshop
from typer.testing import CliRunner

from accord.cli import app

pytestmark = pytest.mark.slow

GUIDE = ROOT / "docs/guides/typescript.md"
_BLOCK = re.compile(r"^```(?:ts|tsx|typescript)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks() -> dict[str, str]:
    """Every block of TypeScript, by page and number."""
    found = {}
    for page in (*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", FABRIC / "README.md"):
        for number, text in enumerate(_BLOCK.findall(page.read_text()), 1):
            found[f"{page.relative_to(ROOT).with_suffix('')}-{number}".replace("/", "-")] = text
    return found


def contracts(folder: Path) -> list[dict[str, Any]]:
    """The contracts of the guide: the one that is generated, and the two that it prints."""
    file = folder / "greeter.py"
    runner = CliRunner()
    assert runner.invoke(app, ["service", "new", str(file)]).exit_code == 0
    assert runner.invoke(app, ["contract", "build", str(file)]).exit_code == 0
    greeter = json.loads((folder / "greeter.contract.json").read_text())
    (printed,) = (
        step.text
        for step in steps(GUIDE.read_text())
        if isinstance(step, Command) and step.text.startswith("cat > browser.json")
    )
    browser = json.loads("\n".join(printed.splitlines()[1:-1]))
    return [greeter, browser, {**browser, "id": "caller@v1", "kind": "service"}]


def test_what_pages_print_compiles_strictly(npm: Path, tmp_path: Path) -> None:
    printed = blocks()
    assert {"docs-guides-typescript-1", "packages-typescript-README-1"} <= set(printed)
    workshop = Workshop(tmp_path / "workshop", npm)
    workshop.add(contracts(tmp_path))
    for name, text in printed.items():
        (workshop.folder / f"{name}.ts").write_text(text)
    workshop.programs()


def test_a_block_that_does_not_compile_is_noticed(npm: Path, tmp_path: Path) -> None:
    workshop = Workshop(tmp_path / "workshop", npm)
    workshop.add(contracts(tmp_path))
    wrong = blocks()["packages-typescript-README-1"].replace('name: "Ann"', "name: 7")
    (workshop.folder / "wrong.ts").write_text(wrong)
    with pytest.raises(AssertionError, match=r"wrong\.ts.*not assignable to type 'string'"):
        workshop.programs()
