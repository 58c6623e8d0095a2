"""`accord contract build`: the contract of a service's code as a reviewed file."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from accord.cli import app
from accord.contracts import validate
from accord.kernel.errors import AccordError

SERVICE = """
from dataclasses import dataclass

from accord.fabric import KeyValue, TypedService

service = TypedService("{name}@v1", "Sells things.")


@dataclass
class Item:
    name: str


@service.rpc()
async def buy(item: Item{more}) -> Item:
    return item
"""


@pytest.fixture
def module(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    # A name of its own: modules of one name are imported once in a process.
    file = tmp_path / f"built_{abs(hash(request.node.name))}.py"
    file.write_text(SERVICE.format(name="shop", more=""))
    return file


def build(*words: str) -> Result:
    return CliRunner().invoke(app, ["contract", "build", *words])


def test_the_contract_is_written_beside_the_module_and_checked(module: Path) -> None:
    file = module.with_suffix(".contract.json")
    assert build(str(module), "--check").exit_code == 1
    assert not file.exists()
    assert build(str(module)).exit_code == 0
    manifest = json.loads(file.read_text())
    assert validate(manifest) == []
    assert "Shop.Buy" in manifest["rpc"]
    assert build(str(module), "--check").exit_code == 0
    written = file.stat().st_mtime_ns
    assert "Unchanged" in build(str(module)).stdout
    assert file.stat().st_mtime_ns == written


def test_a_changed_contract_is_shown_as_a_diff_and_exits_1(module: Path) -> None:
    build(str(module))
    module.write_text(module.read_text().replace("name: str", "title: str"))
    result = build(str(module), "--check")
    assert result.exit_code == 1
    assert '-        "name": {' in result.stdout
    assert '+        "title": {' in result.stdout
    told = json.loads(build(str(module), "--check", "--json").stdout)
    assert told["differs"] is True
    assert told["id"] == "shop@v1"
    assert '"name"' in module.with_suffix(".contract.json").read_text()


def test_another_file_may_be_named(module: Path, tmp_path: Path) -> None:
    out = tmp_path / "elsewhere.json"
    assert build(f"{module}:service", "--out", str(out)).exit_code == 0
    assert json.loads(out.read_text())["id"] == "shop@v1"


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (SERVICE.format(name="shop", more=", stock: KeyValue[Item]"), "no resource is declared"),
        ("x = 1\n", "the module has 0 services and not one"),
        ("1 / 0\n", "ZeroDivisionError"),
        (SERVICE.format(name="SHOP SHOP", more=""), "contract"),
    ],
)
def test_code_without_a_valid_contract_writes_nothing(module: Path, source: str, why: str) -> None:
    module.write_text(source)
    result = build(str(module))
    assert isinstance(result.exception, AccordError)
    assert why in str(result.exception)
    assert not module.with_suffix(".contract.json").exists()


def test_a_contract_and_a_function_that_returns_one_are_built_too(tmp_path: Path) -> None:
    out = tmp_path / "library.json"
    assert build("examples.library:contract", "--out", str(out)).exit_code == 0
    assert json.loads(out.read_text())["id"] == "library@v1"
