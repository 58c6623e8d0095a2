"""The action, the job and the hook for CI: what is written in them is run on a real repository."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.fakes.authorities import served_authority

ROOT = Path(__file__).parents[2]
CI = ROOT / "deploy" / "ci"
ACTION: dict[str, Any] = yaml.safe_load((CI / "github" / "action.yml").read_text())
JOB: dict[str, Any] = yaml.safe_load((CI / "gitlab" / "contracts.gitlab-ci.yml").read_text())
HOOKS: list[dict[str, Any]] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())

Done = subprocess.CompletedProcess[str]
Shell = Callable[..., Done]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository whose branch `origin/main` has a contract."""
    folder = tmp_path / "repository"
    folder.mkdir()
    for words in (
        ["init", "-q", "-b", "main"],
        ["config", "user.name", "Ann"],
        ["config", "user.email", "ann@example.org"],
    ):
        subprocess.run(["git", *words], cwd=folder, check=True)
    made = run(folder, "accord contract new graph@v1")
    (folder / "graph.contract.json").write_text(made.stdout)
    for words in (
        ["add", "."],
        ["commit", "-q", "-m", "A contract"],
        ["update-ref", "refs/remotes/origin/main", "HEAD"],
    ):
        subprocess.run(["git", *words], cwd=folder, check=True)
    return folder


def run(folder: Path, script: str, env: Mapping[str, str] | None = None) -> Done:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    home = {"ACCORD_HOME": str(folder.parent / "home")}
    return subprocess.run(
        ["/bin/sh", "-eu", "-c", script],
        cwd=folder,
        env={**os.environ, **home, "PATH": path, **(env or {})},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def change(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    file = folder / "graph.contract.json"
    contract = json.loads(file.read_text())
    edit(contract)
    file.write_text(json.dumps(contract, indent=2))


def remove_rpc(contract: dict[str, Any]) -> None:
    del contract["rpc"]


def add_member(contract: dict[str, Any]) -> None:
    contract["schemas"]["Greeting"]["properties"]["language"] = {"type": "string"}


def drop_capability(contract: dict[str, Any]) -> None:
    contract["rpc"]["Greeting.Make"]["capabilities"]["call"] = []


def action(folder: Path, **inputs: str) -> list[Done]:
    """Run the steps of the action as GitHub would, until one fails."""
    given = {name: str(each.get("default", "")) for name, each in ACTION["inputs"].items()} | inputs
    known = {f"inputs.{name}": value for name, value in given.items()}
    known["github.base_ref || github.event.repository.default_branch"] = "main"

    def expanded(text: str) -> str:
        return re.sub(r"\$\{\{ (.*?) \}\}", lambda found: known[found[1]], text)

    done: list[Done] = []
    for step in ACTION["runs"]["steps"]:
        if "if" in step and step["if"] == "inputs.sarif != ''" and not given["sarif"]:
            continue
        env = {name: expanded(value) for name, value in step.get("env", {}).items()}
        assert "${{" not in step["run"], "inputs come by the environment, not as code"
        env["GITHUB_ACTION_PATH"] = str(CI / "github")
        done.append(run(folder, step["run"], env))
        if done[-1].returncode:
            break
    return done


def job(folder: Path, **variables: str) -> Done:
    known = {name: str(value) for name, value in JOB["contracts"]["variables"].items()}
    known["CI_MERGE_REQUEST_TARGET_BRANCH_NAME"] = "main"
    script = "\n".join(JOB["contracts"]["script"])
    return run(folder, script, {**known, "CONTRACTS": "graph.contract.json", **variables})


@pytest.mark.slow
def test_the_action_passes_a_compatible_change_and_annotates_a_break(repository: Path) -> None:
    change(repository, add_member)
    *_, last = action(repository, contracts="graph.contract.json")
    assert (last.returncode, last.stdout) == (0, "graph.contract.json: compatible\n")
    change(repository, remove_rpc)
    *_, last = action(repository, contracts="graph.contract.json", sarif="found.sarif")
    assert last.returncode == 1
    assert last.stdout.startswith("::error file=graph.contract.json,line=")
    found = json.loads((repository / "found.sarif").read_text())["runs"][0]["results"]
    assert "surface.removed" in {each["ruleId"] for each in found}


@pytest.mark.slow
def test_the_action_takes_names_with_a_semicolon_for_names(repository: Path) -> None:
    *_, last = action(repository, contracts="x.json;touch$IFS'owned'")
    assert last.returncode == 2
    assert not (repository / "owned").exists()


@pytest.mark.slow
def test_the_action_compares_with_a_registry_by_its_token(repository: Path, tmp_path: Path) -> None:
    with served_authority(tmp_path / "authority", push=True) as (url, token):
        env = {"ACCORD_REGISTRY": url, "ACCORD_REGISTRY_TOKEN": token}
        assert run(repository, "accord contract push graph.contract.json", env).returncode == 0
        change(repository, remove_rpc)
        given = {"contracts": "graph.contract.json", "against": url, "token": token}
        *_, last = action(repository, **given, versions="live")
        assert last.returncode == 1
        assert token not in last.stdout + last.stderr
        *_, refused = action(repository, **{**given, "token": "wrong"})
        assert refused.returncode == 2


@pytest.mark.slow
def test_a_migration_passes_where_that_is_allowed(repository: Path) -> None:
    change(repository, drop_capability)
    *_, last = action(repository, contracts="graph.contract.json")
    assert last.returncode == 3
    *_, last = action(repository, contracts="graph.contract.json", migrations="allow")
    assert last.returncode == 0


@pytest.mark.slow
def test_the_job_writes_a_code_quality_report(repository: Path) -> None:
    assert job(repository).returncode == 0
    change(repository, remove_rpc)
    assert job(repository).returncode == 1
    report = repository / JOB["contracts"]["artifacts"]["reports"]["codequality"]
    assert "surface.removed" in {each["check_name"] for each in json.loads(report.read_text())}
    assert job(repository, LEVEL="strict").returncode == 2
    assert JOB["contracts"]["allow_failure"]["exit_codes"] == 3


@pytest.mark.slow
def test_the_hook_refuses_a_commit_that_breaks_and_takes_new_contracts(repository: Path) -> None:
    (hook,) = HOOKS
    assert re.search(hook["files"], "graph.contract.json")
    (repository / "new.contract.json").write_text(
        run(repository, "accord contract new paper@v1").stdout
    )
    both = f"{hook['entry']} graph.contract.json new.contract.json"
    assert run(repository, both).returncode == 0
    change(repository, remove_rpc)
    refused = run(repository, both)
    assert refused.returncode == 1
    assert "the RPC Greeting.Make is gone" in refused.stdout
