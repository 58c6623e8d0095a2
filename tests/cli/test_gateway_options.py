"""What can be chosen for a gateway on the command line and in its environment."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from accord.cli import app, output
from accord.relay import gateway as gateways
from accord.relay.gateway import GatewayHealth, GatewayState

KNOWN = {
    "GATEWAY_RELAY_URL": "https://connector.example",
    "GATEWAY_RELAY_ID": "gw",
    "GATEWAY_RELAY_SECRET": "s3cret",
}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """What gateways were made with; none of them runs."""
    found: list[dict[str, Any]] = []

    class Recorded:
        health = GatewayHealth(GatewayState.CONNECTING)

        def __init__(self, url: str, **given: Any) -> None:
            found.append({"url": url, **given})

        async def run(self) -> GatewayState:
            return GatewayState.STOPPED

    monkeypatch.setattr(gateways, "RelayGateway", Recorded)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name, value in KNOWN.items():
        monkeypatch.setenv(name, value)
    return found


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["relay", "gateway", "run", "--command", "cat", *words])


def settings(made: list[dict[str, Any]], *words: str) -> Any:
    result = run(*words)
    assert result.exit_code == 0, result.output
    return made[-1]["settings"]


def test_without_options_it_never_sleeps_and_leaves_the_wake_url_alone(
    made: list[dict[str, Any]],
) -> None:
    chosen = settings(made)
    assert (chosen.idle, chosen.wake_url, chosen.when_busy) == (None, None, "queue")
    assert (chosen.relevance, chosen.command_manifest) == ({}, None)
    assert made[-1]["suspend"] is None
    assert made[-1]["secret"] == "s3cret"


def test_everything_can_be_said_by_options(made: list[dict[str, Any]], tmp_path: Path) -> None:
    file = tmp_path / "commands.json"
    file.write_text(json.dumps([{"name": "ask", "description": "Ask"}]))
    words = "--front memory --front other:bot --idle 30 --wake-url https://wake.example/"
    words += " --when-busy interrupt --require-mention --free-response-channels c1,c2"
    words += f" --shared-groups --profile coder --commands {file}"
    chosen = settings(made, *words.split())
    assert (chosen.idle.wake_url, chosen.idle.after) == ("https://wake.example/", 30)
    assert chosen.wake_url == "https://wake.example/"
    assert chosen.when_busy == "interrupt"
    assert chosen.command_manifest == [{"name": "ask", "description": "Ask"}]
    assert chosen.session_rules.to_dict() == {
        "session_keys": "scoped",
        "group_sessions_per_user": False,
        "profile": "coder",
    }
    policy = gateways.relevance_policies(["memory"], chosen.relevance, {})["memory"]
    assert policy.require_address
    assert policy.free_response_scopes == {"c1", "c2"}


def test_everything_can_be_said_by_the_environment(
    made: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "commands.json"
    file.write_text(json.dumps([{"name": "ask", "description": "Ask"}]))
    for name, value in {
        "PLATFORMS": "memory",
        "IDLE_SECONDS": "60",
        "SUSPEND_COMMAND": "true",
        "AWAKE_WHILE": "false",
        "WAKE_URL": "https://wake.example/",
        "WHEN_BUSY": "interrupt",
        "REQUIRE_MENTION": "1",
        "FREE_RESPONSE_CHANNELS": "c1",
        "PROFILE": "coder",
        "SHARED_GROUPS": "1",
        "COMMANDS": str(file),
    }.items():
        monkeypatch.setenv(f"GATEWAY_RELAY_{name}", value)
    chosen = settings(made)
    assert (chosen.idle.after, chosen.wake_url) == (60, "https://wake.example/")
    assert chosen.relevance == {"require_mention": True, "free_response_channels": "c1"}
    assert (chosen.when_busy, chosen.profile) == ("interrupt", "coder")
    assert chosen.session_rules.to_dict()["group_sessions_per_user"] is False
    assert chosen.command_manifest == [{"name": "ask", "description": "Ask"}]
    assert made[-1]["suspend"] is not None
    assert (
        settings(made, "--idle", "5", "--no-require-mention").relevance["require_mention"] is False
    )


def test_the_suspend_command_gets_no_secret_and_a_failure_is_an_error(
    made: list[dict[str, Any]], tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    settings(made, "--idle", "5", "--suspend", f'echo "[$GATEWAY_RELAY_SECRET]" > {seen}')
    asyncio.run(made[-1]["suspend"]())
    assert seen.read_text() == "[]\n"
    settings(made, "--idle", "5", "--suspend", "exit 3")
    with pytest.raises(RuntimeError, match="ended with 3"):
        asyncio.run(made[-1]["suspend"]())


@pytest.mark.parametrize(("line", "others"), [("true", ("true",)), ("false", ())])
def test_a_command_tells_whether_something_else_needs_the_machine(
    made: list[dict[str, Any]], line: str, others: tuple[str, ...]
) -> None:
    chosen = settings(made, "--idle", "5", "--awake-while", line)
    assert asyncio.run(chosen.idle.other_connections()) == others


@pytest.mark.parametrize(
    "words",
    [
        ["--suspend", "true"],
        ["--awake-while", "true"],
        ["--require-mention"],
        ["--idle", "0"],
        ["--idle", "soon"],
        ["--when-busy", "never"],
    ],
)
def test_options_that_mean_nothing_are_refused(
    made: list[dict[str, Any]], words: list[str]
) -> None:
    assert run(*words).exit_code == output.MISUSED
    assert made == []


@pytest.mark.parametrize("text", ["{}", "[1]", '"x"', "nonsense"])
def test_a_file_without_commands_is_refused(
    made: list[dict[str, Any]], tmp_path: Path, text: str
) -> None:
    file = tmp_path / "commands.json"
    file.write_text(text)
    assert run("--commands", str(file)).exit_code != 0
    assert made == []


def test_a_profile_that_is_no_plain_name_is_refused(made: list[dict[str, Any]]) -> None:
    assert run("--profile", "a:b").exit_code != 0
    assert made == []


def test_a_secret_of_the_environment_cannot_be_rotated_in_a_file(
    made: list[dict[str, Any]],
) -> None:
    result = CliRunner().invoke(app, ["relay", "gateway", "rotate"])
    assert "environment" in str(result.exception)
    assert "s3cret" not in str(result.exception) + result.output


def test_limits_are_given_one_by_one_or_by_the_environment(
    made: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = settings(made, "--limit", "turns=8", "--limit", "outbound=2.5").limits
    assert (limits.turns, limits.outbound) == (8, 2.5)
    assert limits.typing == gateways.GatewayLimits().typing
    monkeypatch.setenv("GATEWAY_RELAY_LIMITS", "keep=3600 waiting=5")
    limits = settings(made).limits
    assert (limits.keep, limits.waiting) == (3600.0, 5)


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ("turnz=8", "there is no limit 'turnz'"),
        ("turns", "turns: Input should be a valid integer"),
        ("turns=0", "turns: Input should be greater than or equal to 1"),
        ("outbound=nan", "outbound: Input should be"),
        ("line_bytes=99999999999", "line_bytes: Input should be less than or equal to"),
    ],
)
def test_a_limit_that_is_none_is_refused(made: list[dict[str, Any]], limit: str, said: str) -> None:
    result = run("--limit", limit)
    assert result.exit_code == output.MISUSED
    assert said in " ".join(result.output.replace("│", " ").split())
    assert made == []
