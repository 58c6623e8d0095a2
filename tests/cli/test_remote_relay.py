"""Operating a connector from another machine: the same answers, and what becomes of the token."""

import asyncio
import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.connectors import served_connector
from typer.testing import CliRunner, Result

from accord.cli import app, output
from accord.kernel.clock import SystemClock
from accord.kernel.errors import AccordError
from accord.relay.connector import InboundEvent
from accord.relay.connector.admin import VERBS
from accord.relay.rules import MessageEvent, SessionSource
from accord.station import load
from accord.station.home import Home, ensure_device_key, hold_home
from accord.station.relay import operate_relay

# What is random or depends on the time.
_VARYING = {
    "code",
    "created_at",
    "dead_at",
    "event",
    "expires_at",
    "key_id",
    "now",
    "old_until",
    "older",
    "passed_at",
    "prepared",
    "received_at",
    "revoked_at",
    "secret",
    "token",
    "trace_id",
    "used_at",
}


def made_home(path: Path) -> Path:
    home = Home(path)
    with ExitStack() as undo, hold_home(home, "nowhere", undo):
        ensure_device_key(home, undo)
        undo.pop_all()
    return home.path


def relay(*words: str, env: Mapping[str, str | None] | None = None, stdin: str = "") -> Result:
    return CliRunner().invoke(app, ["relay", *words], env=env, input=stdin)


def ask(*words: str, **given: Any) -> Any:
    result = relay(*words, "--json", **given)
    assert result.exit_code == 0, f"{words}: {result.exception} {result.output}"
    return json.loads(result.stdout)


def refusal(*words: str, **given: Any) -> str:
    result = relay(*words, **given)
    assert isinstance(result.exception, AccordError), f"{words}: {result.output}"
    return str(result.exception)


def alike(value: Any) -> Any:
    """A result without what differs between two homes."""
    if isinstance(value, dict):
        return {
            name: type(each).__name__ if name in _VARYING else alike(each)
            for name, each in value.items()
        }
    return [alike(each) for each in value] if isinstance(value, list) else value


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A home whose connector is served, and its address."""
    home = made_home(tmp_path_factory.mktemp("site") / "home")
    with served_connector(home) as url:
        yield home, url


async def populate(home: Path) -> None:
    """An agent with a linked person, of whose messages one waits and two are dead letters."""
    async with operate_relay(load(home), SystemClock(), "test") as connector:
        token = await connector.control.mint_token("t1", "echo")
        await connector.control.enrol(token.token, "gw-echo")
        await connector.control.bind("echo", "memory", "ann")
        async with connector.delivery.running():
            for name in ("e1", "e2", "e3"):
                source = SessionSource("memory", "dm", "dm", user_id="ann")
                event = MessageEvent(name, source, message_id=name, bot_id="bot")
                await connector.delivery.take(InboundEvent("memory", "bot", name, event))
                if name == "e2":
                    await connector.delivery.dead_letter("echo", "of old age")
            stranger = SessionSource("memory", "c9", "group", user_id="eve")
            event = MessageEvent("hello", stranger, message_id="e4", bot_id="bot")
            await connector.delivery.take(InboundEvent("memory", "bot", "e4", event))


SCRIPT = (
    "token new --instance mirror --tenant t1 --hours 1",
    "token list",
    "token list --tenant t2",
    "instances",
    "instances --tenant t2",
    "links",
    "link echo",
    "link echo --account memory bo",
    "links --instance echo",
    "default echo memory bo",
    "unlink memory bo --instance echo",
    "unlink memory nobody",
    "rotate echo --grace 60",
    "key show",
    "key prepare",
    "key rotate",
    "key rotate --finish",
    "key show",
    "key forget",
    "key forget",
    "outbox list",
    "outbox list --dead",
    "retention confirm",
    "retention show",
    "why",
    "why --last 2",
    "why e1",
    "why e3",
    "why e4",
    "deadletters list",
    "deadletters list --instance echo --limit 1",
    "deadletters drop echo 1",
    "deadletters replay echo --all",
    "scope route memory g1 --tenant t1",
    "scope grant echo memory g1 c1",
    "scope release echo memory g1 c1",
    "scope share memory g1",
    "open echo memory g1 c1",
    "scope list",
    "close memory g1 c1",
    "scope share memory g1 --away",
    "scope route memory g1 --away",
    "wake-url echo",
    "wake-url echo https://wake.example/echo",
    "wake-url echo --clear",
    "sessions echo",
    "sessions echo --groups shared --threads per-user --profile desk --pin",
    "instances",
    "sessions echo --by-gateway",
    "principal echo memory",
    "principal echo memory allow-list --allow ann",
    "policy echo memory",
    "policy echo memory --require-address --free c1",
    "policy echo memory --by-gateway",
    "revoke echo",
    "pardon echo",
    "revoke --tenant t1",
    "pardon --tenant t1",
    "instances",
)
REFUSED = (
    "link nobody",
    "rotate nobody",
    "revoke nobody",
    "revoke --tenant nobody",
    "pardon nobody",
    "default nobody memory ann",
    "principal nobody memory",
    "policy nobody memory",
    "scope grant nobody memory g1 c1",
    "scope release nobody memory g1 c1",
    "open nobody memory g1 c1",
    "wake-url nobody https://wake.example/echo",
    "wake-url echo http://127.0.0.1/",
    "sessions nobody",
    "sessions nobody --groups shared",
    "sessions echo --profile a:b",
    "why nothing",
    "deadletters replay nobody 1",
    "deadletters drop nobody 1",
    "outbox retry 1",
    "outbox drop 1",
)


@pytest.mark.slow
def test_every_command_answers_the_same_here_and_from_elsewhere(tmp_path: Path) -> None:
    here, there = made_home(tmp_path / "here"), made_home(tmp_path / "there")
    for each in (here, there):
        asyncio.run(populate(each))
    file = tmp_path / "token"
    file.write_text(relay("operator-token", "new", "twin", "--home", str(there)).stdout)
    with served_connector(there) as url:
        remote = ("--connector", url, "--token-file", str(file))
        for line in SCRIPT:
            local, distant = ask(*line.split(), "--home", str(here)), ask(*remote, *line.split())
            assert alike(distant) == alike(local), line
        for line in REFUSED:
            words = line.split()
            assert refusal(*remote, *words) == refusal(*words, "--home", str(here)), line


def test_no_verb_is_left_out() -> None:
    """What is not compared above is done at the connector's own machine only."""
    compared = {
        "instances",
        "tokens/new",
        "tokens/list",
        "links/new",
        "links/add",
        "links/list",
        "links/remove",
        "links/default",
        "rotate",
        "key/show",
        "key/prepare",
        "key/rotate",
        "key/forget",
        "revoke",
        "pardon",
        "route",
        "share",
        "places",
        "open",
        "close",
        "wake-url/show",
        "wake-url/set",
        "sessions/show",
        "sessions/set",
        "grant",
        "release",
        "principals/show",
        "principals/set",
        "relevance/show",
        "relevance/set",
        "relevance/unset",
        "why",
        "why/latest",
        "letters/list",
        "letters/replay",
        "letters/drop",
        "outbox/list",
        "outbox/retry",
        "outbox/drop",
        "retention/show",
        "retention/confirm",
    }
    assert {name for name, verb in VERBS.items() if not verb.is_local} == compared


def test_the_token_comes_from_an_option_a_file_stdin_or_the_environment(
    tmp_path: Path, site: tuple[Path, str]
) -> None:
    home, url = site
    token = relay("operator-token", "new", "sources", "--home", str(home)).stdout.strip()
    file = tmp_path / "token"
    file.write_text(f"{token}\n")
    at = ("--connector", url)
    expected = ask("instances", "--home", str(home))
    assert ask(*at, "--token", token, "instances") == expected
    assert ask(*at, "--token", "-", "instances", stdin=f"{token}\n") == expected
    assert ask(*at, "--token-file", str(file), "instances") == expected
    assert ask(*at, "instances", env={"ACCORD_RELAY_TOKEN": token}) == expected
    assert ask(*at, "instances", env={"ACCORD_RELAY_TOKEN_FILE": str(file)}) == expected
    env = {"ACCORD_RELAY_CONNECTOR": url, "ACCORD_RELAY_TOKEN": token}
    assert ask("instances", env=env) == expected
    # A home that is named is meant.
    other = made_home(tmp_path / "home")
    assert ask("instances", "--home", str(other), env=env) == {"instances": []}


def test_tokens_are_listed_without_their_secret_and_revoked(site: tuple[Path, str]) -> None:
    home, url = site
    at = ("--home", str(home))
    made = ask("operator-token", "new", "bo", "--read-only", "--expires", "12h", *at)
    assert made["read_only"]
    listed = ask("operator-token", "list", *at)["operators"]
    assert [each["name"] for each in listed].count("bo") == 1
    assert made["token"].rpartition("_")[2] not in json.dumps(listed)
    remote = ("--connector", url, "--token", made["token"])
    ask(*remote, "instances")
    assert "may only read" in refusal(*remote, "scope", "route", "memory", "g9")
    assert "still good" in refusal("operator-token", "new", "bo", *at)
    relay("operator-token", "revoke", "bo", *at)
    assert "was revoked" in refusal(*remote, "instances")
    assert "no operator" in refusal("operator-token", "revoke", "bo", *at)
    assert relay("operator-token", "new", "cy", "--expires", "x", *at).exit_code == output.MISUSED


def test_a_token_is_never_shown(site: tuple[Path, str]) -> None:
    _, url = site
    wrong = f"operator_{'0' * 16}_{'S' * 43}"
    for words in (
        ("--connector", url, "--token", wrong, "instances"),
        ("--connector", url, "--token", wrong, "instances", "--json"),
        ("--connector", "http://192.0.2.1", "--token", wrong, "instances"),
        ("--connector", "nonsense", "--token", wrong, "instances"),
        ("--token", wrong, "instances"),
    ):
        result = relay(*words)
        assert result.exit_code != 0
        assert "SSSS" not in f"{result.output} {result.exception}"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://192.0.2.1:7090", "without https"),
        ("http://connector.example", "without https"),
        ("http://localhost.example", "without https"),
        ("ftp://connector.example", "not a URL"),
        ("connector.example", "not a URL"),
        ("https://", "not a URL"),
        ("https://[::1", "not a URL"),
        ("https://connector.example:port", "not a URL"),
        ("https://ann:word@connector.example", "no password"),
        ("https://connector.example/?token=x", "no password"),
    ],
)
def test_an_address_that_cannot_be_trusted_is_not_dialled(url: str, why: str) -> None:
    told = refusal("--connector", url, "--token", "operator_x", "instances")
    assert why in told
    assert "word" not in told.replace("password", "")


def test_who_is_not_there_is_said_so(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as reserved:
        port = reserved.getsockname()[1]
    remote = ("--connector", f"http://127.0.0.1:{port}", "--token", "operator_x")
    assert "does not answer" in refusal(*remote, "instances")
    assert "token is needed" in refusal("--connector", "https://c.example", "instances")
    missing = ("--connector", "https://c.example", "--token-file", str(tmp_path / "none"))
    assert "cannot be read" in refusal(*missing, "instances")


def test_options_that_contradict_each_other_are_misused(tmp_path: Path) -> None:
    at = ("--connector", "https://c.example")
    for words in (
        (*at, "--token", "x", "--token-file", "y", "instances"),
        (*at, "--token", "x", "instances", "--home", str(tmp_path)),
        ("--token", "x", "instances"),
        ("--plain-http", "instances"),
    ):
        assert relay(*words).exit_code == output.MISUSED, words


def test_the_web_chat_is_looked_after_at_its_own_machine(site: tuple[Path, str]) -> None:
    _, url = site
    told = refusal("--connector", url, "--token", "operator_x", "chat", "list")
    assert "the web chat is managed on the connector's own machine" in told
    env = {"ACCORD_RELAY_CONNECTOR": url, "ACCORD_RELAY_TOKEN": "operator_x"}
    assert "without --connector and ACCORD_RELAY_CONNECTOR" in refusal("chat", "list", env=env)


def test_a_connector_is_not_served_for_another_machine(site: tuple[Path, str]) -> None:
    _, url = site
    told = refusal("--connector", url, "--token", "operator_x", "serve")
    assert "`serve` runs a connector on this machine" in told


def test_the_key_of_the_secrets_is_rotated_from_elsewhere(site: tuple[Path, str]) -> None:
    home, url = site
    token = relay("operator-token", "new", "keys", "--home", str(home)).stdout.strip()
    remote = ("--connector", url, "--token", token)
    file = home / "keys" / "relay.key"
    before, shown = file.read_bytes(), ask(*remote, "key", "show")
    assert shown == ask("key", "show", "--home", str(home))
    assert shown["key_id"].encode() not in before
    ask(*remote, "key", "rotate")
    after = ask(*remote, "key", "show")
    assert after["older"][0] == shown["key_id"]
    assert after["old_boxes"] == 0
    # The connector that runs, and a command here, use the same file.
    assert file.read_bytes() != before
    assert ask("key", "show", "--home", str(home)) == after
    ask(*remote, "instances")
    for line in before.decode().split():
        assert line not in json.dumps(after)
    read_only = ask("operator-token", "new", "looks", "--read-only", "--home", str(home))["token"]
    looking = ("--connector", url, "--token", read_only)
    assert ask(*looking, "key", "show") == after
    for verb in ("rotate", "prepare", "forget"):
        assert "may only read" in refusal(*looking, "key", verb)
    assert ask("key", "show", "--home", str(home)) == after
