"""The page of a contract."""

from typing import Any

import pytest
from hypothesis import given, settings
from tests.fakes.strategies import manifests

from accord.contracts import ContractError
from accord.contracts.authoring import Contract, Docs
from accord.contracts.export import render_page


def page(**texts: Any) -> str:
    contract = Contract(
        "things@v1", **{"display_name": "Things", "description": "Has things.", **texts}
    )
    contract.schema("A|B`C", {"type": "string", "examples": ["```"]})
    contract.capability("read", "Read", "See | all.", consequence="Seen.")
    contract.rpc("Get", "A|B`C", "A|B`C", call=["read"], errors=["Missing"])
    contract.operation("Make", "A|B`C", "A|B`C", signals={"go": "A|B`C"}, cancel=[])
    contract.job("work", "A|B`C", docs=Docs("## Work\n\nMuch.", "In short."))
    return render_page(contract.manifest())


def test_a_page_has_a_heading_for_each_part_of_the_contract() -> None:
    headings = [line for line in page().splitlines() if line.startswith("#")]
    assert headings == [
        "# Things",
        "## Capabilities",
        "## Uses",
        "## RPCs",
        "### `Get`",
        "## Operations",
        "### `Make`",
        "## Jobs",
        "### `work`",
        "## Work",
        "## Schemas",
        "### ``A|B`C``",
    ]


def test_a_page_tells_who_may_do_what() -> None:
    lines = page().splitlines()
    assert "| may call | `things::read` |" in lines
    assert "| may cancel | every authenticated caller |" in lines
    assert "| errors | `Missing` |" in lines


def test_names_cannot_leave_their_cells_and_blocks() -> None:
    lines = page().splitlines()
    assert "| input | ``A\\|B`C`` |" in lines
    assert "| `things::read` | Read | See \\| all. Seen. |" in lines
    assert "````json" in lines


def test_plain_texts_are_not_read_as_markdown() -> None:
    text = page(display_name="<script>*x*", description="[a](b)\n# c")
    assert "# \\<script\\>\\*x\\*" in text
    assert "\n\\[a\\](b) \\# c\n" in text


@given(manifests())
@settings(max_examples=50)
def test_every_contract_has_a_page_that_names_all_its_surfaces(manifest: dict[str, Any]) -> None:
    lines = render_page(manifest).splitlines()
    for section in ("rpc", "operations", "events", "feeds", "jobs", "state", "eventConsumers"):
        for name in manifest.get(section, {}):
            assert f"### `{name}`" in lines


def test_what_is_no_contract_has_no_page() -> None:
    with pytest.raises(ContractError):
        render_page({})
