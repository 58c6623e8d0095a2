"""The notebook in the docs is what its script makes."""

import importlib.util
from pathlib import Path
from typing import Any

import nbformat
import pytest

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture(scope="module")
def tour() -> Any:
    spec = importlib.util.spec_from_file_location("pipeline_tour", DOCS / "pipeline_tour.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def kept() -> Any:
    untyped: Any = nbformat
    return untyped.read(DOCS / "pipeline-tour.ipynb", as_version=4)


def test_the_notebook_has_the_cells_of_its_script_all_of_them_run(tour: Any, kept: Any) -> None:
    assert [(cell.cell_type, cell.source) for cell in kept.cells] == [
        (cell.cell_type, cell.source) for cell in tour.cells()
    ]
    run = [cell for cell in kept.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in run] == list(range(1, len(run) + 1))
    assert not [out for cell in run for out in cell.outputs if out.output_type == "error"]


def test_the_notebook_shows_nothing_of_the_machine_it_was_made_on() -> None:
    text = (DOCS / "pipeline-tour.ipynb").read_text()
    for trace in ("/tmp", "/home", "/usr", "/var", "site-packages", "127.0.0.1", "localhost"):
        assert trace not in text


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_running_it_again_prints_the_same(tour: Any, kept: Any) -> None:
    again = tour.build()
    for before, now in zip(kept.cells, again.cells, strict=True):
        if before.cell_type == "code":
            assert [_said(each) for each in now.outputs] == [_said(o) for o in before.outputs]


def _said(output: Any) -> Any:
    return output.get("text") or output.data
