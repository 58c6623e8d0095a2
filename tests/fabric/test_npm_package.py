"""The npm package `accord-fabric` as one file, as `make npm-package` packs it."""

import json
import tarfile
from pathlib import Path

import pytest
from packages.typescript.pack import PACKAGE, pack

from accord.contracts.export.typescript import FABRIC, FABRIC_VERSION


@pytest.mark.slow
def test_the_file_has_what_programs_import_and_names_no_registry(npm: Path, tmp_path: Path) -> None:
    packed = pack(tmp_path / "out", npm.parent)
    declared = json.loads((PACKAGE / "package.json").read_text())
    assert packed.name == f"{FABRIC}-{declared['version']}.tgz"
    with tarfile.open(packed) as archive:
        files = {each.name.removeprefix("package/"): each for each in archive if each.isfile()}
        texts = {name: archive.extractfile(each) for name, each in files.items()}
        read = {name: text.read().decode() for name, text in texts.items() if text}
    modules = {file.stem for file in (PACKAGE / "src").iterdir()}
    assert set(files) == {"LICENSE", "README.md", "package.json"} | {
        f"{folder}/{name}{suffix}"
        for name in modules
        for folder, suffix in (("src", ".ts"), ("dist", ".js"), ("dist", ".d.ts"))
    }
    assert json.loads(read["package.json"])["exports"]["."]["default"] == "./dist/index.js"
    assert [name for name, text in read.items() if "registry" in text] == []


def test_the_lock_has_digests_and_no_addresses() -> None:
    locked = json.loads((PACKAGE / "package-lock.json").read_text())["packages"]
    others = {name: entry for name, entry in locked.items() if name}
    assert others
    assert all(entry["integrity"].startswith("sha512-") for entry in others.values())
    assert [name for name, entry in others.items() if "resolved" in entry] == []


def test_generated_packages_ask_for_the_version_that_is_packed() -> None:
    declared = json.loads((PACKAGE / "package.json").read_text())
    locked = json.loads((PACKAGE / "package-lock.json").read_text())
    assert locked["version"] == declared["version"]
    # A caret keeps the minor version while the major one is 0.
    assert FABRIC_VERSION.startswith("^0.")
    assert declared["version"].split(".")[:2] == FABRIC_VERSION.removeprefix("^").split(".")[:2]
