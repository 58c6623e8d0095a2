"""The files for those who run it for others: each is taken by the program that it is written for,
and says nothing that the code does not know.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from accord.relay.connector.control import Keyring
from accord.station.settings import load, secret_files, sections, variable

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").iterdir())
MANIFESTS = sorted(
    each for each in (DEPLOY / "kubernetes").glob("*.yaml") if each.stem != "kustomization"
)
BIN = Path(sys.executable).parent


def ran(*words: str | Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        list(map(str, words)),
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **(env or {})},
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


def documents() -> Iterator[tuple[str, dict[str, Any]]]:
    for file in MANIFESTS:
        for each in yaml.safe_load_all(file.read_text()):
            yield file.name, each


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_takes_the_unit(unit: Path, tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not on this machine")
    for each in UNITS:
        text = each.read_text().replace("/opt/accord/bin/accord", str(BIN / "accord"))
        (tmp_path / each.name).write_text(text)
    name = unit.name.replace("@.", "@1.")
    if name != unit.name:
        (tmp_path / unit.name).rename(tmp_path / name)
    assert ran("systemd-analyze", "verify", "--man=no", tmp_path / name) == ""


def test_the_container_file_has_no_finding() -> None:
    assert ran(BIN / "hadolint", DEPLOY / "container" / "Containerfile") == ""


def test_what_the_container_installs_is_of_the_lock() -> None:
    def pins(file: Path) -> set[str]:
        return set(re.findall(r"^[\w.-]+==\S+(?: ; .*?)?(?= \\$)", file.read_text(), re.MULTILINE))

    def bare(found: set[str]) -> set[str]:
        return {each.partition(" ;")[0] for each in found}

    inside = bare(pins(DEPLOY / "container" / "requirements.lock"))
    assert len(inside) > 50
    assert inside <= bare(pins(ROOT / "requirements.lock"))
    assert not {"pytest", "mypy", "playwright"} & {each.partition("==")[0] for each in inside}


def test_the_compose_file_keeps_its_schema() -> None:
    compose = DEPLOY / "compose" / "compose.yaml"
    ran(BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", compose)


def test_the_compose_file_names_nothing_that_is_not_in_it() -> None:
    compose = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
    for service in compose["services"].values():
        assert set(service.get("secrets", ())) <= set(compose["secrets"])
        assert set(service.get("depends_on", ())) <= set(compose["services"])
        named = {each.partition(":")[0] for each in service.get("volumes", ())}
        assert {each for each in named if "/" not in each} <= set(compose["volumes"])


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda file: file.name)
def test_kubernetes_takes_the_manifest(manifest: Path) -> None:
    assert "passed" in ran(BIN / "kubernetes-validate", "--strict", manifest)


def test_the_manifests_hang_together() -> None:
    found = [each for _, each in documents()]
    deployed = {
        each["metadata"]["name"]: each["spec"]["template"]["metadata"]["labels"]
        for each in found
        if each["kind"] == "Deployment"
    }
    assert set(deployed) == {"connectors", "authority"}
    for each in found:
        if each["kind"] == "Service":
            assert each["spec"]["selector"] == deployed[each["metadata"]["name"]]
        if each["kind"] == "Ingress":
            for rule in each["spec"]["rules"]:
                for path in rule["http"]["paths"]:
                    assert path["backend"]["service"]["name"] in deployed
    listed = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text())
    assert {each.name for each in MANIFESTS} == set(listed["resources"])


def test_every_variable_in_the_files_is_a_setting() -> None:
    known = {
        variable(section, key)
        for section, model in sections().items()
        for key in model.model_fields
    }
    known |= {"ACCORD_HOME", *secret_files()}
    for file in DEPLOY.rglob("*"):
        if file.is_file():
            assert set(re.findall(r"\bACCORD_[A-Z_]+", file.read_text())) <= known, file


def test_what_prepare_makes_is_taken_by_a_connector_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compose = shutil.copytree(DEPLOY / "compose", tmp_path / "compose")
    ran(compose / "prepare", "relay.example", "authority.example")
    made = {each.name: each.read_bytes() for each in (compose / "secrets").iterdir()}
    declared = yaml.safe_load((compose / "compose.yaml").read_text())["secrets"]
    assert set(made) == set(declared)
    assert (compose / "secrets").stat().st_mode & 0o077 == 0
    ran(compose / "prepare", "relay.example", "authority.example")
    assert made == {each.name: each.read_bytes() for each in (compose / "secrets").iterdir()}

    home = tmp_path / "home"
    folders = {"ACCORD_HOME": str(home), "SECRETS_FOLDER": str(compose / "secrets")}
    path = {"PATH": f"{BIN}:{os.environ['PATH']}"}
    ran(DEPLOY / "container" / "start", "--version", env=folders | path)
    assert Keyring.load(home / "keys" / "relay.key").key_id
    monkeypatch.setenv("ACCORD_STORE__URL_FILE", str(compose / "secrets" / "store_url"))
    monkeypatch.setenv("ACCORD_RELAY__REDIS_FILE", str(compose / "secrets" / "redis_url"))
    settings = load(home)
    assert settings.store.url.get_secret_value().endswith("@postgres/accord")
    assert settings.relay.redis.get_secret_value() == "redis://redis:6379/0"


def test_prepare_without_names_says_what_it_wants_and_makes_nothing(tmp_path: Path) -> None:
    compose = shutil.copytree(DEPLOY / "compose", tmp_path / "compose")
    done = subprocess.run([compose / "prepare"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "usage" in done.stderr
    assert not (compose / "secrets").exists()
