"""Every page that tells people what to do is done, word by word."""

import re
from pathlib import Path

import pytest
from tests.docs.pages import Left, steps
from tests.docs.reading import ROOT, Reader

pytestmark = pytest.mark.slow

PAGES = sorted(
    str(page.relative_to(ROOT))
    for page in (
        ROOT / "README.md",
        ROOT / "docs/tutorial.md",
        ROOT / "examples/README.md",
        *(ROOT / "docs/guides").rglob("*.md"),
    )
)
LONG = {
    "docs/guides/authority.md",
    "docs/guides/backup.md",
    "docs/guides/bridge.md",
    "docs/guides/chat.md",
    "docs/guides/community.md",
    "docs/guides/concierge.md",
    "docs/guides/doors.md",
    "docs/guides/files.md",
    "docs/guides/invite-a-friend.md",
    "docs/guides/market.md",
    "docs/guides/models.md",
    "docs/guides/open-mode.md",
    "docs/guides/pipeline-corpus.md",
    "docs/guides/pipeline-data.md",
    "docs/guides/pipeline-tables.md",
    "docs/guides/pipeline.md",
    "docs/guides/platforms/webhook.md",
    "docs/guides/rag.md",
    "docs/guides/relay.md",
    "docs/guides/revoke-a-device.md",
    "docs/guides/self-service.md",
    "docs/guides/upgrade.md",
    "docs/guides/whatif.md",
    "docs/guides/write-a-service.md",
    "docs/tutorial.md",
    "examples/README.md",
}
"""Pages that start Spark or several stations, or whose steps are those of other pages, too."""

SPARK = "## Try a change on what happened"
"""The part of the tutorial that takes longer than the rest, which does not build on it."""

NEEDS = ("a cluster", "a container engine", "an account", "another machine", "minutes", "root")


def follow(text: str, folder: Path, seconds: float) -> None:
    with Reader(folder, seconds=seconds) as reader:
        reader.follow(steps(text))


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.long] if page in LONG else []) for page in PAGES],
)
@pytest.mark.timeout(1200)
def test_every_command_of_a_page_says_what_the_page_says(page: str, tmp_path: Path) -> None:
    follow((ROOT / page).read_text(), tmp_path / "reader", 300)


@pytest.mark.timeout(600)
def test_the_tutorial_ends_as_it_promises_also_without_spark(tmp_path: Path) -> None:
    text = (ROOT / "docs/tutorial.md").read_text()
    shorter, parts = re.subn(rf"^{SPARK}$.*?(?=^## )", "", text, flags=re.MULTILINE | re.DOTALL)
    assert parts == 1
    follow(shorter, tmp_path / "reader", 90)


def test_what_is_not_run_says_what_it_needs() -> None:
    left = [
        (page, step)
        for page in PAGES
        for step in steps((ROOT / page).read_text())
        if isinstance(step, Left)
    ]
    for page, step in left:
        for command in step.commands:
            print(f"{page}:{command.line}: needs {step.needs}: $ {command.text.splitlines()[0]}")
    print(f"{sum(len(step.commands) for _, step in left)} commands are not run")
    assert [
        f"{page}:{step.line}: {step.needs}"
        for page, step in left
        if not step.needs.startswith(NEEDS)
    ] == []
