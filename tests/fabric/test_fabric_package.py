"""The package `accord-fabric`: built from the checkout, alone in an empty environment, it calls."""

import asyncio
import importlib.metadata
import json
import os
import subprocess
import sys
import tomllib
import venv
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from pydantic import BaseModel
from tests.fabric.fabric_station import Station, station

from accord.fabric import TypedService
from accord.fabric.app import shell_contract

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "packages/fabric"

CLIENT = """
import asyncio, json, sys, time

began = time.process_time()
from accord.fabric import Authority, Service
spent = time.process_time() - began
from accord.kernel.signing import SigningKey

asked = json.loads(sys.stdin.read())


async def main():
    key = SigningKey(bytes.fromhex(asked["key"]))
    service = Service(asked["own"], key=key, authority=asked["url"])
    async with service.connect() as session:
        answer = await session.client(asked["target"]).call("Greeter.Greet", {"name": "Ann"})
    loaded = sorted({name.partition(".")[0] for name in sys.modules})
    print(json.dumps({"answer": answer, "import": spent, "loaded": loaded}))


asyncio.run(main())
"""


def requirements(name: str, seen: set[str]) -> set[str]:
    """A distribution and what it needs here, without extras."""
    if name in seen:
        return seen
    seen.add(name)
    for text in importlib.metadata.requires(name) or ():
        needed = Requirement(text)
        if needed.marker is None or needed.marker.evaluate({"extra": ""}):
            requirements(needed.name.lower(), seen)
    return seen


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the built wheel, and of this one only what the wheel asks for."""
    folder = tmp_path_factory.mktemp("slim")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=PACKAGE, check=True, capture_output=True)
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    made = folder / "venv/bin/python"
    code = "import site; print(site.getsitepackages()[0])"
    place = Path(subprocess.check_output([made, "-c", code], text=True).strip())
    (wheel,) = folder.glob("*.whl")
    # Nothing is fetched, and nothing else is there.
    words = ("-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(place))
    subprocess.run([sys.executable, *words, str(wheel)], check=True, capture_output=True)
    declared = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]["dependencies"]
    needed: set[str] = set()
    for text in declared:
        requirements(Requirement(text).name, needed)
    for name in needed:
        found = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in found.files or ()} - {".."}:
            if not (place / top).exists():
                (place / top).symlink_to(Path(str(found.locate_file(top))))
    return made


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[Station]:
    async with station(tmp_path) as house:
        yield house


class Name(BaseModel):
    name: str


@pytest.mark.slow
async def test_the_package_alone_connects_and_calls(python: Path, house: Station) -> None:
    typed = TypedService("greeter@v1", "Greets people.")

    @typed.rpc()
    async def greet(who: Name) -> Name:
        return Name(name=f"Good morning, {who.name}!")

    target = typed.contract.manifest()
    own = shell_contract(target)
    made = typed(key=await house.deploy("greeter", typed.contract), authority=house.url)
    key = await house.deploy("shell", own)
    asked = {"own": own.manifest(), "target": target, "url": house.url, "key": key.seed.hex()}
    async with made.connect():
        process = await asyncio.create_subprocess_exec(
            *(str(python), "-c", CLIENT),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"PATH": os.environ["PATH"]},
        )
        out, _ = await process.communicate(json.dumps(asked).encode())
    told: dict[str, Any] = json.loads(out)
    print("import, processor seconds:", told["import"])
    assert told["answer"] == {"name": "Good morning, Ann!"}
    heavy = {"pydantic", "sqlalchemy", "alembic", "starlette", "typer", "prometheus_client"}
    assert not heavy & set(told["loaded"])


@pytest.mark.parametrize(("slim", "main", "warned"), [("9.8.7", "9.8.7", 0), ("9.8.7", "9.8.6", 1)])
def test_both_packages_in_two_versions_are_warned_of(
    slim: str, main: str, warned: int, tmp_path: Path
) -> None:
    for name, version in (("accord-fabric", slim), ("accord", main)):
        folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        written = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (folder / "METADATA").write_text(written)
    ran = subprocess.run(
        [sys.executable, "-c", "import accord.fabric"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT / 'src'}"},
        capture_output=True,
        text=True,
        check=True,
    )
    told = "accord 9.8.6 and accord-fabric 9.8.7 are both installed"
    assert ran.stderr.count(told) == warned
    assert ("RuntimeWarning" in ran.stderr) == bool(warned)


def test_the_package_asks_for_no_more_than_the_main_one() -> None:
    slim = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    main = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = {Requirement(text).name: text for text in main["dependencies"]}
    for text in slim["dependencies"] + slim["optional-dependencies"]["typed"]:
        assert asked[Requirement(text).name] == text
    assert len(slim["dependencies"]) < len(asked) / 2
