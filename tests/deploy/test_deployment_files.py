"""The files for those who run it for others: each is taken by the program that it is written for,
and says nothing that the code does not know.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest
import yaml

from accord.authority.nats import ListenAddress, embedded_server, read_cluster
from accord.authority.rules import AuthorityError
from accord.kernel.clock import SystemClock
from accord.relay.connector import Keyring
from accord.station import load
from accord.station.settings import secret_files, sections, variable

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


def test_what_a_station_installs_is_part_of_what_tests_install() -> None:
    def pins(file: Path) -> set[str]:
        return set(re.findall(r"^[\w.-]+==\S+(?: ; .*?)?(?= \\$)", file.read_text(), re.MULTILINE))

    def bare(found: set[str]) -> set[str]:
        return {each.partition(" ;")[0] for each in found}

    inside = bare(pins(ROOT / "requirements.lock"))
    assert len(inside) > 50
    assert inside <= bare(pins(ROOT / "requirements-dev.lock"))
    assert not {"pytest", "mypy", "playwright", "matrix-synapse", "mkdocs", "ruff"} & {
        each.partition("==")[0] for each in inside
    }


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
    known |= {"ACCORD_HOME", "ACCORD_REGISTRY_TOKEN", *secret_files()}
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


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every pod's specification, by the name of what makes it."""
    for _, each in documents():
        spec = each.get("spec", {})
        spec = spec.get("jobTemplate", {}).get("spec", spec)
        if "template" in spec:
            yield each["metadata"]["name"], spec["template"]["spec"]


def test_the_user_of_a_pod_can_read_its_secrets_and_nobody_else() -> None:
    seen = 0
    for name, pod in pods():
        user = pod["securityContext"]
        assert user["runAsNonRoot"], name
        for volume in pod["volumes"]:
            if "secret" in volume:
                # Kubernetes gives the files to root and to this group.
                assert volume["secret"]["defaultMode"] == 0o440, name
                assert user["fsGroup"] == user["runAsGroup"] == 10001, name
                seen += 1
    assert seen == 5


async def test_keys_of_a_secret_become_keys_that_are_taken(tmp_path: Path) -> None:
    """As Kubernetes mounts them: links into a folder of a version, open to the group."""
    async with embedded_server(tmp_path / "nats", ListenAddress(), SystemClock()) as server:
        held = server.cluster
    mounted = tmp_path / "run" / "nats"
    data = mounted / "..2026_11_18"
    data.mkdir(parents=True)
    for name in ("account.nk", "callout.nk", "xkey.nk"):
        shutil.copy(tmp_path / "nats" / "keys" / name, data / name)
    for name in ("callout", "authority", "sentinel"):
        (data / f"{name}.creds").write_text(getattr(held, name).text)
    for file in data.iterdir():
        file.chmod(0o440)
        (mounted / file.name).symlink_to(Path(data.name) / file.name)
    with pytest.raises(AuthorityError, match="read by others"):
        read_cluster(held.urls, mounted)

    home = tmp_path / "home"
    settings = next(each for _, each in documents() if each["kind"] == "ConfigMap")["data"]
    folders = {"ACCORD_HOME": str(home), "NATS_FOLDER": str(mounted), "SECRETS_FOLDER": "/nowhere"}
    path = {"PATH": f"{BIN}:{os.environ['PATH']}"}
    for _ in range(2):  # a container that is started again
        ran(DEPLOY / "container" / "start", "--version", env=folders | path)
        found = read_cluster(held.urls, home / settings["ACCORD_AUTHORITY__NATS_KEYS"])
        assert found.account == held.account
        assert found.xkey is not None
    mounts = {
        mount["mountPath"]
        for name, pod in pods()
        for mount in pod["containers"][0]["volumeMounts"]
        if name == "authority"
    }
    assert "/run/nats" in mounts


def test_sessions_are_told_a_nats_address_that_they_can_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compose = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
    authority = compose["services"]["authority"]
    for name, value in authority["environment"].items():
        if name.startswith("ACCORD_AUTHORITY__"):
            monkeypatch.setenv(name, re.sub(r"\$\{AUTHORITY_NAME.*?\}", "authority.example", value))
    chosen = load(tmp_path).authority
    assert f"{chosen.nats_port}:{chosen.nats_port}" in authority["ports"]
    certificate = Path(chosen.nats_certificate)
    listening = ListenAddress(
        chosen.nats_host, chosen.nats_port, certificate, chosen.nats_advertise or None
    ).checked()
    assert listening.url == "tls://authority.example:4222"
    mounted = {each.split(":")[1] for each in authority["volumes"]}
    assert str(certificate.parent) in mounted
    settings = next(each for _, each in documents() if each["kind"] == "ConfigMap")["data"]
    (url,) = json.loads(settings["ACCORD_AUTHORITY__NATS_URLS"])
    assert url.startswith("tls://")
    assert not url.partition("//")[2].startswith(("127.", "localhost"))


def test_services_of_the_compose_file_do_not_wait_for_each_other() -> None:
    services = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())["services"]
    order = TopologicalSorter(
        {name: set(each.get("depends_on", ())) for name, each in services.items()}
    )
    assert set(order.static_order()) == set(services)


def test_the_proxys_certificate_becomes_a_file_that_only_the_authority_reads(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "acme.example-directory" / "authority.example"
    folder.mkdir(parents=True)
    to = tmp_path / "nats.pem"
    env = {
        "AUTHORITY_NAME": "authority.example",
        "CERTIFICATES": str(tmp_path),
        "CERTIFICATE": str(to),
        "OWNER": f"{os.getuid()}:{os.getgid()}",
    }
    hand_over = DEPLOY / "compose" / "certificate"
    (folder / "authority.example.crt").write_text("certificate\n")
    ran(hand_over, "once", env=env)
    assert not to.exists()  # without its key it is of no use
    (folder / "authority.example.key").write_text("key\n")
    ran(hand_over, "once", env=env)
    assert to.read_text() == "certificate\nkey\n"
    assert to.stat().st_mode & 0o777 == 0o400
    (folder / "authority.example.crt").write_text("renewed\n")
    ran(hand_over, "once", env=env)
    assert to.read_text() == "renewed\nkey\n"
    assert sorted(each.name for each in tmp_path.iterdir()) == [folder.parent.name, "nats.pem"]
    script = (DEPLOY / "compose" / "certificate").read_text()
    container = (DEPLOY / "container" / "Containerfile").read_text()
    assert "--uid 10001" in container
    assert "10001:10001" in script


def test_prepare_without_names_says_what_it_wants_and_makes_nothing(tmp_path: Path) -> None:
    compose = shutil.copytree(DEPLOY / "compose", tmp_path / "compose")
    done = subprocess.run([compose / "prepare"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "usage" in done.stderr
    assert not (compose / "secrets").exists()
