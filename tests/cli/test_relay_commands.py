"""What an operator does about a relay, by the store of its home and from another machine."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.connectors import served_connector
from tests.fakes.outbox_rows import add_action
from typer.testing import CliRunner, Result

from accord.cli import app, output
from accord.kernel.clock import SystemClock
from accord.kernel.errors import AccordError
from accord.relay.connector import InboundEvent, IssuedCredentials
from accord.relay.connector.registry import secrets_of
from accord.relay.rules import MessageEvent, PrincipalPolicy, SessionSource
from accord.station import load
from accord.station.home import Home, ensure_device_key, hold_home
from accord.station.relay import operate_relay

CLOCK = SystemClock()


class Operator:
    """Gives commands about one home."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def invoke(self, *words: str) -> Result:
        return CliRunner().invoke(app, ["relay", *words, "--home", str(self.home)])

    def run(self, *words: str) -> str:
        result = self.invoke(*words)
        assert result.exit_code == 0, f"{words}: {result.exception} {result.output}"
        return result.stdout

    def ask(self, *words: str) -> Any:
        return json.loads(self.run(*words, "--json"))

    def refused(self, *words: str) -> str:
        """The sentence of a command that is refused."""
        result = self.invoke(*words)
        assert isinstance(result.exception, AccordError), f"{words}: {result.output}"
        assert result.stdout == ""
        assert output.show_error(result.exception) == output.FAILED
        return str(result.exception)

    def misused(self, *words: str) -> str:
        result = self.invoke(*words)
        assert result.exit_code == output.MISUSED, result.output
        return " ".join(result.output.split())

    def enrol(self, instance: str, tenant: str = "default") -> IssuedCredentials:
        """An agent with its gateway, as if a gateway had spent a token."""
        token = self.run("token", "new", "--instance", instance, "--tenant", tenant).strip()

        async def spend() -> IssuedCredentials:
            async with operate_relay(load(self.home), CLOCK, "test") as connector:
                return await connector.control.enrol(token, f"gw-{instance}")

        return asyncio.run(spend())

    def take(self, *events: str) -> None:
        """Events of a person who is linked to `echo`, in a channel that nobody can look into."""

        async def work() -> None:
            async with operate_relay(load(self.home), CLOCK, "test") as connector:
                await connector.control.bind("echo", "memory", "ann")
                async with connector.delivery.running():
                    for name in events:
                        source = SessionSource("memory", "dm", "dm", user_id="ann")
                        event = MessageEvent(name, source, message_id=name, bot_id="bot")
                        await connector.delivery.take(InboundEvent("memory", "bot", name, event))

        asyncio.run(work())


class RemoteOperator(Operator):
    """Gives the same commands from another machine, with a token in a file."""

    def __init__(self, home: Path, url: str, token_file: Path) -> None:
        super().__init__(home)
        self.options = ["--connector", url, "--token-file", str(token_file)]

    def invoke(self, *words: str) -> Result:
        return CliRunner().invoke(app, ["relay", *self.options, *words])


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home whose station has run once."""
    home = Home(tmp_path / "home")
    with ExitStack() as undo, hold_home(home, "nowhere", undo):
        ensure_device_key(home, undo)
        undo.pop_all()
    return home.path


@pytest.fixture(params=["here", "elsewhere"])
def operator(request: pytest.FixtureRequest, home: Path, tmp_path: Path) -> Iterator[Operator]:
    """An operator at the home, or one at another machine."""
    here = Operator(home)
    if request.param == "here":
        yield here
        return
    file = tmp_path / "token"
    file.write_text(here.run("operator-token", "new", "ann"))
    with served_connector(home) as url:
        yield RemoteOperator(home, url, file)


def test_where_no_station_ran_there_is_nothing_to_operate(tmp_path: Path) -> None:
    sentence = Operator(tmp_path / "home").refused("instances")
    assert "no station here yet" in sentence
    assert "accord up" in sentence
    assert not (tmp_path / "home").exists()


def test_a_token_is_printed_once_and_never_listed(operator: Operator) -> None:
    made = operator.ask("token", "new", "--tenant", "t1", "--instance", "echo", "--hours", "1")
    assert made["token"].startswith("enrol_")
    assert (made["tenant"], made["instance"]) == ("t1", "echo")
    [listed] = operator.ask("token", "list")["tokens"]
    assert (listed["instance"], listed["used_at"]) == ("echo", None)
    shown = operator.run("token", "list")
    assert "not used" in shown
    assert made["token"] not in json.dumps(listed) + shown
    assert operator.ask("token", "list", "--tenant", "t2") == {"tokens": []}
    operator.enrol("other")
    assert "used 20" in operator.run("token", "list")


def test_agents_are_listed_with_how_they_are_doing(operator: Operator) -> None:
    secret = operator.enrol("echo").secret
    operator.enrol("mirror", "t2")
    found = {each["instance"]: each for each in operator.ask("instances")["instances"]}
    assert set(found) == {"echo", "mirror"}
    assert found["echo"]["live"]
    assert found["echo"]["empty"]
    assert len(operator.ask("instances", "--tenant", "t2")["instances"]) == 1
    operator.take("e1")
    assert "messages wait" in operator.run("instances")
    assert secret not in operator.run("instances", "--json")


def test_a_link_code_comes_with_what_to_send(operator: Operator) -> None:
    operator.enrol("echo")
    assert operator.run("link", "echo").startswith("/link ")
    assert len(operator.ask("link", "echo")["code"]) == 11
    assert "no instance 'nobody'" in operator.refused("link", "nobody")


def test_a_rotated_secret_is_new_and_the_old_one_has_its_grace(operator: Operator) -> None:
    old = operator.enrol("echo").secret
    new = operator.run("rotate", "echo", "--grace", "60").strip()
    assert new != old
    assert operator.ask("rotate", "echo")["secret"] not in (old, new)


def test_a_rotation_without_grace_ends_every_older_secret(operator: Operator) -> None:
    first = operator.enrol("echo").secret
    second = operator.ask("rotate", "echo")["secret"]

    async def valid() -> list[str]:
        async with operate_relay(load(operator.home), CLOCK, "test") as connector:
            now, ring = int(CLOCK.now() * 1000), connector.control.directory.keyring
            return await connector.store.read(lambda c: secrets_of(c, ring, "echo", now))

    assert asyncio.run(valid()) == [second, first]
    third = operator.ask("rotate", "echo", "--grace", "0")["secret"]
    assert asyncio.run(valid()) == [third]


def test_an_operator_says_how_a_gateway_keys_sessions(operator: Operator) -> None:
    operator.enrol("echo")
    shown = operator.run("sessions", "echo")
    assert shown.splitlines() == [
        "groups  per-user  by default",
        "threads  shared  by default",
        "profile  -  by default",
    ]
    shown = operator.run("sessions", "echo", "--groups", "shared", "--profile", "desk", "--pin")
    assert "groups  shared  set by the operator" in shown
    assert "pinned" in shown
    assert "sessions: groups shared, profile desk" in operator.run("instances")
    [listed] = operator.ask("instances")["instances"]
    assert listed["sessions"]["override"] == {
        "group_sessions_per_user": False,
        "profile": "desk",
        "pinned": True,
    }
    # All of it anew.
    found = operator.ask("sessions", "echo", "--threads", "per-user")
    assert found["override"] == {"thread_sessions_per_user": True, "pinned": False}
    assert operator.ask("sessions", "echo", "--by-gateway")["override"] is None
    assert "other options" in operator.misused("sessions", "echo", "--by-gateway", "--pin")
    assert "what is pinned" in operator.misused("sessions", "echo", "--pin")
    assert "letters" in operator.refused("sessions", "echo", "--profile", "a:b")


def test_a_wake_url_is_set_shown_and_cleared_and_never_printed(operator: Operator) -> None:
    operator.enrol("echo")
    assert operator.ask("wake-url", "echo") == {
        "instance": "echo",
        "has_wake_url": False,
        "set_by": None,
    }
    assert "public https" in operator.refused("wake-url", "echo", "http://127.0.0.1/wake")
    shown = operator.run("wake-url", "echo", "https://wake.example/?k=s3cret")
    assert "operator named" in shown
    assert "s3cret" not in shown
    assert operator.ask("wake-url", "echo")["set_by"] == "operator"
    assert "no wake URL" in operator.run("wake-url", "echo", "--clear")
    assert "--clear" in operator.misused("wake-url", "echo", "https://x.example", "--clear")
    assert "no instance" in operator.refused("wake-url", "nobody")


def test_the_key_of_the_relays_secrets_is_rotated_and_the_old_one_forgotten(home: Path) -> None:
    operator = Operator(home)
    secret = operator.enrol("echo").secret
    first = operator.ask("key", "show")
    assert first["older"] == []
    prepared = operator.ask("key", "prepare")["prepared"]
    assert operator.ask("key", "prepare")["prepared"] == prepared
    assert operator.ask("key", "show")["key_id"] == first["key_id"]
    assert operator.ask("key", "rotate") == {"encrypted": 2}
    status = operator.ask("key", "show")
    assert status["key_id"] == prepared
    assert (status["older"], status["prepared"], status["old_boxes"]) == (
        [first["key_id"]],
        None,
        0,
    )
    assert operator.ask("key", "rotate", "--finish") == {"encrypted": 0}
    assert operator.ask("key", "forget") == {"forgotten": 1}
    assert operator.ask("key", "forget") == {"forgotten": 0}
    file = operator.home / "keys" / "relay.key"
    assert len(file.read_text().splitlines()) == 1
    assert file.stat().st_mode & 0o777 == 0o600
    assert secret not in operator.run("instances", "--json")
    assert operator.enrol("other").secret  # and everything still works


def test_a_hello_that_was_refused_is_listed_with_its_reason(operator: Operator) -> None:
    operator.enrol("echo")

    async def hello() -> None:
        async with operate_relay(load(operator.home), CLOCK, "test") as connector:
            caller = await connector.control.principal("echo")
            directory = connector.control.directory
            await directory.note_hello(caller, "slack", "", "no such platform")

    asyncio.run(hello())
    assert "refused slack: no such platform" in operator.run("instances")
    [listed] = operator.ask("instances")["instances"]
    assert listed["refused"] == [{"platform": "slack", "bot_id": "", "reason": "no such platform"}]


def test_a_revoked_agent_loses_what_waits_and_comes_back_when_pardoned(operator: Operator) -> None:
    operator.enrol("echo")
    operator.take("e1", "e2")
    assert "Revoked: echo" in operator.run("revoke", "echo")
    assert "revoked 20" in operator.run("instances")
    letters = operator.ask("deadletters", "list")["letters"]
    assert [each["reason"] for each in letters] == ["the instance was revoked"] * 2
    assert "revoked" in operator.refused("link", "echo")
    assert "Pardoned: echo" in operator.run("pardon", "echo")
    operator.enrol("echo")
    assert "live" in operator.run("instances")


def test_only_a_revoked_agent_is_pardoned(operator: Operator) -> None:
    operator.enrol("echo")
    assert operator.ask("pardon", "echo") == {"pardoned": None}
    assert "'nobody'" in operator.refused("pardon", "nobody")
    operator.run("revoke", "echo")
    assert operator.ask("pardon", "echo") == {"pardoned": "echo"}


def test_a_tenant_is_switched_off_and_on_as_a_whole(operator: Operator) -> None:
    operator.enrol("echo", "t1")
    operator.enrol("mirror", "t1")
    assert operator.ask("revoke", "--tenant", "t1") == {"revoked": ["echo", "mirror"]}
    assert "switched off" in operator.run("instances")
    operator.run("pardon", "--tenant", "t1")
    assert operator.run("instances").count("live") == 2
    assert "no tenant" in operator.refused("revoke", "--tenant", "t9")


def test_revoke_wants_one_agent_or_one_tenant(operator: Operator) -> None:
    assert "one tenant" in operator.misused("revoke")
    assert "one tenant" in operator.misused("revoke", "echo", "--tenant", "t1")


def test_a_channel_is_granted_to_one_agent_and_released(operator: Operator) -> None:
    operator.enrol("echo")
    operator.take()
    channel = ("memory", "g1", "c1")
    assert "does not belong" in operator.refused("scope", "grant", "echo", *channel)
    operator.run("scope", "route", "memory", "g1")
    assert operator.ask("scope", "grant", "echo", *channel)["channel_id"] == "c1"
    operator.enrol("mirror")
    assert "no linked owner" in operator.refused("scope", "grant", "mirror", *channel)
    assert "does not hold" in operator.refused("scope", "release", "mirror", *channel)
    operator.run("scope", "release", "echo", *channel)
    operator.run("scope", "route", "memory", "g1", "--away")


def test_whom_an_agent_hears_is_shown_and_changed(operator: Operator) -> None:
    operator.enrol("echo")
    assert operator.run("principal", "echo", "memory") == "owner-only\n"
    said = operator.run("principal", "echo", "memory", "allow-list", "--allow", "ann")
    assert said == "allow-list: ann\n"
    found = operator.ask("principal", "echo", "memory")
    assert found == {"platform": "memory", "policy": "allow-list", "allow": ["ann"]}
    operator.misused("principal", "echo", "memory", "any", "--allow", "ann")
    operator.misused("principal", "echo", "memory", "everybody")


def test_when_an_agent_wants_to_be_spoken_to_is_shown_and_replaced(operator: Operator) -> None:
    operator.enrol("echo")
    default = operator.ask("policy", "echo", "memory")
    assert default["require_address"] is False
    operator.run("policy", "echo", "memory", "--require-address", "--free", "c1")
    assert operator.ask("policy", "echo", "memory") == {
        "platform": "memory",
        "require_address": True,
        "free_response_scopes": ["c1"],
        "allow_other_bots": False,
        "set_by": "operator",
    }
    operator.run("policy", "echo", "memory", "--other-bots")
    said = "need not be addressed; hears other bots"
    assert operator.run("policy", "echo", "memory") == f"{said}; set by the operator\n"
    assert operator.run("policy", "echo", "memory", "--by-gateway") == f"{said}\n"
    operator.misused("policy", "echo", "memory", "--by-gateway", "--other-bots")


def test_an_event_that_nobody_knows_is_one_sentence(operator: Operator) -> None:
    assert "nothing is known" in operator.refused("why", "\x1b[31mred")
    assert operator.run("why") == ""


def test_what_waits_and_what_is_dead_says_so(operator: Operator) -> None:
    operator.enrol("echo")
    operator.take("e1")
    assert "echo (waits to be sent)" in operator.run("why", "e1")
    operator.run("revoke", "echo")
    assert "echo (a dead letter: the instance was revoked)" in operator.run("why", "e1")


def test_dead_letters_are_replayed_or_dropped_by_number(operator: Operator) -> None:
    operator.enrol("echo")
    operator.take("e1", "e2", "e3")

    async def die() -> None:
        async with operate_relay(load(operator.home), CLOCK, "test") as connector:
            await connector.delivery.dead_letter("echo", "of old age")

    asyncio.run(die())
    numbers = [each["seq"] for each in operator.ask("deadletters", "list")["letters"]]
    first, second, third = map(str, sorted(numbers))
    assert "of old age" in operator.run("deadletters", "list", "--instance", "echo")
    assert "--all" in operator.misused("deadletters", "replay", "echo")
    assert "no dead letter 99" in operator.refused("deadletters", "drop", "echo", first, "99")
    assert operator.ask("deadletters", "replay", "echo", second)["replayed"] == 1
    assert "echo (waits to be sent)" in operator.run("why", "e2")
    assert operator.ask("deadletters", "drop", "echo", first)["dropped"] == 1
    left = [each["seq"] for each in operator.ask("deadletters", "list")["letters"]]
    assert left == [int(third)]
    assert operator.ask("deadletters", "replay", "echo", "--all")["replayed"] == 1
    assert operator.ask("deadletters", "list") == {"letters": [], "replies": []}


def test_a_space_of_the_web_chat_belongs_to_a_tenant(home: Path) -> None:
    operator = Operator(home)
    assert "no such space" in operator.refused("chat", "invite")
    made = operator.ask("chat", "space", "kitchen", "--tenant", "t1")
    other = operator.ask("chat", "channel", "plans", "--private")
    assert other["space"] == made["space"]
    assert operator.ask("chat", "invite", "--manager")["url"].startswith("/chat/#invite=")
    shown = operator.ask("chat", "list")
    assert [each["name"] for each in shown["channels"]] == ["general", "plans"]
    (pending,) = shown["invites"]
    assert (pending["space"], pending["manager"]) == (made["space"], True)
    assert "no such invitation" in operator.refused("chat", "withdraw", "0" * 16)
    assert operator.ask("chat", "withdraw", pending["id"]) == {"withdrawn": pending["id"]}
    assert operator.ask("chat", "list")["invites"] == []
    assert "no such user" in operator.refused("chat", "remove", "nobody")
    operator.run("chat", "space", "garden")
    assert "several" in operator.refused("chat", "invite")
    operator.run("chat", "invite", "--space", "garden")
    assert "space of this name" in operator.refused("chat", "space", "garden")


def gateway(*words: str) -> Result:
    return CliRunner().invoke(app, ["relay", "gateway", *words])


def test_a_gateway_wants_one_agent_and_its_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    assert gateway("run").exit_code == output.MISUSED
    assert gateway("run", "--agent", "a:b", "--command", "cat").exit_code == output.MISUSED
    missing = gateway("run", "--command", "cat").exception
    assert "no gateway has enrolled here" in str(missing)
    assert "no module" in str(gateway("run", "--agent", "nowhere_at_all:agent").exception)
    file = tmp_path / "gw.json"
    file.write_text('{"secret":"s3cret"')
    file.chmod(0o600)
    damaged = gateway("run", "--command", "cat", "--file", str(file)).exception
    assert "no gateway's credentials" in str(damaged)
    file.chmod(0o644)
    shown = gateway("run", "--command", "cat", "--file", str(file)).exception
    assert "may be read by others" in str(shown)
    assert "s3cret" not in f"{shown}{damaged}"


def test_the_outbox_is_empty_at_first_and_knows_no_numbers(operator: Operator) -> None:
    assert operator.ask("outbox", "list") == {"actions": []}
    for verb in ("retry", "drop"):
        assert "no action 99" in operator.refused("outbox", verb, "99")


def test_replies_that_were_given_up_are_listed_retried_and_dropped(operator: Operator) -> None:
    operator.enrol("echo")

    async def fill() -> None:
        async with operate_relay(load(operator.home), CLOCK, "test") as connector:
            for name, state in (("r1", "unknown"), ("r2", "refused"), ("r3", "expired")):
                await connector.store.write(lambda c, n=name, s=state: add_action(c, n, state=s))  # type: ignore[misc]
            held = {"state": "sending", "holder": "other", "held_until": 2**50, "ended_at": None}
            await connector.store.write(lambda c: add_action(c, "r4", **held))

    asyncio.run(fill())
    both = operator.ask("deadletters", "list", "--instance", "echo")
    assert both["letters"] == []
    assert {each["state"] for each in both["replies"]} == {"unknown", "refused", "expired"}
    assert "unknown: there was no answer" in operator.run("deadletters", "list")
    listed = {each["request_id"]: each for each in operator.ask("outbox", "list")["actions"]}
    assert len(listed) == 4
    assert "private words" not in str(listed) + operator.run("outbox", "list")
    (waiting,) = operator.ask("outbox", "list", "--waiting")["actions"]
    assert waiting["request_id"] == "r4"
    number = {name: str(each["number"]) for name, each in listed.items()}
    assert operator.ask("outbox", "retry", number["r1"]) == {"retried": [int(number["r1"])]}
    assert operator.ask("outbox", "drop", number["r2"]) == {"dropped": [int(number["r2"])]}
    # Somebody performs it just now.
    assert operator.ask("outbox", "retry", number["r4"]) == {"retried": []}
    assert operator.ask("outbox", "drop", number["r4"]) == {"dropped": []}
    assert "no action" in operator.refused("outbox", "drop", number["r2"])
    assert "Example" in operator.run("outbox", "retry", "--help")
    left = {each["request_id"]: each["state"] for each in operator.ask("outbox", "list")["actions"]}
    # The connector may have begun to send the first one by now.
    assert left.pop("r1") in ("queued", "sending")
    assert left == {"r3": "expired", "r4": "sending"}


def test_places_are_shared_opened_and_closed(operator: Operator) -> None:
    operator.enrol("echo", "t1")
    operator.enrol("mirror", "t2")
    operator.run("scope", "route", "discord", "G1", "--tenant", "t1")
    assert "belongs to another tenant" in operator.refused("open", "mirror", "discord", "G1")
    assert "is shared" in operator.run("scope", "share", "discord", "G1")
    assert "mirror is open" in operator.run("open", "mirror", "discord", "G1")
    assert "another agent is open" in operator.refused("open", "echo", "discord", "G1")
    operator.run("open", "echo", "discord", "G1", "C1")
    operator.run("open", "echo", "discord", "--direct")
    operator.run("open", "echo", "telegram", "", "-100200")
    places = operator.ask("scope", "list")["places"]
    assert [(each["kind"], each.get("instance")) for each in places] == [
        ("route", None),
        ("shared", None),
        ("open", "echo"),
        ("open", "mirror"),
        ("open", "echo"),
        ("open", "echo"),
    ]
    assert "open" in operator.run("scope", "list")
    assert operator.ask("close", "discord", "G1")["instance"] == "mirror"
    assert "No agent was open" in operator.run("close", "discord", "G1")
    assert "not shared" in operator.run("scope", "share", "discord", "G1", "--away")
    for words in (("open", "echo", "discord"), ("close", "discord", "G1", "--direct")):
        assert "--direct" in operator.misused(*words)
    operator.refused("open", "nobody", "discord", "G1")


def test_why_tells_of_an_event_that_is_parked(operator: Operator) -> None:
    operator.enrol("echo")
    operator.enrol("mirror")

    async def work() -> None:
        async with operate_relay(load(operator.home), CLOCK, "test") as connector:
            control = connector.control
            await control.route("default", "memory", "g1")
            await control.bind("echo", "memory", "ann")
            await control.bind("mirror", "memory", "bob")
            await control.grant("mirror", "memory", "g1", "c1")
            mirror = await control.principal("mirror")
            await control.set_principal(mirror, "memory", PrincipalPolicy.ANY)
            source = SessionSource("memory", "c1", "group", user_id="ann", scope_id="g1")
            event = MessageEvent("hello", source, message_id="m", bot_id="bot")
            async with connector.delivery.running():
                # No platform of this name is here, so nobody knows what bob can see.
                await connector.delivery.take(InboundEvent("memory", "bot", "e1", event))

    asyncio.run(work())
    told = operator.run("why", "e1")
    assert "mirror (parked: the platform was asked once, and is asked again)" in told
    assert "visibility  ?    Whether the owner can view the channel is not known." in told
    found = operator.ask("why", "e1")
    [mirror] = [each for each in found["candidates"] if each["instance"] == "mirror"]
    assert mirror["standing"]["state"] == "parked"
    assert found["later"] == []
    assert "mirror (parked)" in operator.run("why")
