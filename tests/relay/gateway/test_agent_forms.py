"""Agents of every form, and commands as agents with real processes."""

import asyncio
import os
import sys
import types
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.relay.gateway.conftest import Running, message

from accord.relay.errors import RelayError
from accord.relay.gateway import (
    Agent,
    GatewayLimits,
    GatewayState,
    ReceivedEvent,
    RecentChats,
    Requests,
    Turn,
    command_agent,
    load_agent,
    prepare_agent,
    run_agent,
)
from accord.testing.connector import DESCRIPTOR, Connector


def turn(text: str = "hello") -> Turn:
    requests = Requests(lambda: "r", GatewayLimits(), Counter())
    delivery = ReceivedEvent("agent:main:web:dm:c=1", message(text))
    return Turn(delivery, DESCRIPTOR, requests, RecentChats(9), GatewayLimits(), lambda _: True)


async def said(agent: Agent | type[Any], text: str = "hello") -> str:
    return "".join([part async for part in run_agent(prepare_agent(agent), turn(text))])


async def yielding(turn: Turn) -> AsyncIterator[str]:
    yield "I heard "
    yield turn.event.text


async def returning(turn: Turn) -> str:
    return f"I heard {turn.event.text}"


async def silent(_: Turn) -> None:
    return None


class Remembering:
    def __init__(self) -> None:
        self.heard: list[str] = []

    async def __call__(self, turn: Turn) -> AsyncIterator[str]:
        self.heard.append(turn.event.text)
        yield f"I heard {', '.join(self.heard)}"


class Iterating:
    def __init__(self, turn: Turn) -> None:
        self._left = ["I heard ", turn.event.text]

    def __aiter__(self) -> "Iterating":
        return self

    async def __anext__(self) -> str:
        if not self._left:
            raise StopAsyncIteration
        return self._left.pop(0)


@pytest.mark.parametrize(
    ("agent", "answer"),
    [
        (yielding, "I heard hello"),
        (returning, "I heard hello"),
        (silent, ""),
        (Remembering, "I heard hello"),
        (Remembering(), "I heard hello"),
        (lambda turn: Iterating(turn), "I heard hello"),
        (lambda turn: returning(turn), "I heard hello"),
    ],
)
async def test_an_agent_may_have_any_of_these_forms(agent: Any, answer: str) -> None:
    assert await said(agent) == answer


async def test_a_class_is_made_into_one_agent_for_all_sessions() -> None:
    agent = prepare_agent(Remembering)
    answers = [await said(agent, text) for text in ("one", "two")]
    assert answers == ["I heard one", "I heard one, two"]


@pytest.mark.parametrize("agent", [7, "text", None])
def test_what_cannot_be_called_is_no_agent(agent: Any) -> None:
    with pytest.raises(RelayError, match="cannot be called"):
        prepare_agent(agent)


async def test_what_is_not_asynchronous_is_no_agent() -> None:
    def blocking(_: Turn) -> Any:
        yield "text"

    with pytest.raises(RelayError, match="not asynchronous"):
        prepare_agent(blocking)
    with pytest.raises(RelayError, match="str, not text"):
        await said(lambda _: "text")  # type: ignore[arg-type, return-value]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    made = types.ModuleType("agents_of_a_test")
    vars(made).update(
        yielding=yielding, Remembering=Remembering, box=types.SimpleNamespace(deep=returning)
    )
    monkeypatch.setitem(sys.modules, "agents_of_a_test", made)
    return made


async def test_agents_are_found_by_name(module: types.ModuleType) -> None:
    for name in ("yielding", "Remembering", "box.deep"):
        assert await said(load_agent(f"{module.__name__}:{name}")) == "I heard hello"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nothing", "names no agent"),
        (":x", "names no agent"),
        ("os:", "names no agent"),
        ("no_such_module_at_all:x", "there is no module no_such_module_at_all"),
        ("os:no_such_thing", "has no no_such_thing"),
        ("os:sep", "cannot be called"),
        ("..relative:x", "cannot be imported"),
    ],
)
def test_a_name_that_finds_nothing_is_a_sentence(name: str, why: str) -> None:
    with pytest.raises(RelayError, match=why):
        load_agent(name)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


async def test_a_command_reads_the_event_and_its_output_is_the_answer() -> None:
    code = "import json,sys; t=json.load(sys.stdin); print(t['event']['text'], t['session_key'])"
    assert await said(command_agent(python(code)), "grüße") == "grüße agent:main:web:dm:c=1\n"


async def test_output_comes_while_the_command_runs_and_characters_stay_whole() -> None:
    code = (
        "import sys; w=sys.stdout.buffer; w.write(b'gr\\xc3'); w.flush(); "
        "sys.stdin.readline(); w.write(b'\\xbc\\xc3\\x9fe\\xff'); w.flush()"
    )
    parts = [part async for part in run_agent(command_agent(python(code)), turn())]
    assert "".join(parts) == "grüße\ufffd"
    assert len(parts) >= 1


async def test_a_command_that_reads_nothing_is_fine() -> None:
    assert await said(command_agent(["echo", "hi"]), "x" * 1_000_000) == "hi\n"


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["no-such-command-at-all"], "cannot be run"),
        (["a\0b"], "cannot be run"),
        (["false"], "exit code 1"),
    ],
)
async def test_a_command_that_fails_is_a_sentence(argv: list[str], why: str) -> None:
    with pytest.raises(RelayError, match=why):
        await said(command_agent(argv))


def test_no_command_is_no_agent() -> None:
    with pytest.raises(RelayError, match="no command"):
        command_agent([])


async def test_a_command_that_prints_without_end_is_ended() -> None:
    with pytest.raises(RelayError, match="printed too much"):
        await said(command_agent(["yes"], output_bytes=100_000))


async def test_a_command_that_takes_too_long_is_ended() -> None:
    with pytest.raises(RelayError, match="did not end within"):
        await said(command_agent(["sleep", "60"], timeout=0.05))


async def test_the_gateways_own_settings_are_withheld(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_RELAY_SECRET", "hush")
    monkeypatch.setenv("KEPT", "this")
    code = "import os; print(os.environ.get('GATEWAY_RELAY_SECRET'), os.environ['KEPT'])"
    assert await said(command_agent(python(code))) == "None this\n"


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def ended(pid: int) -> None:
    """Wait until a process is gone, or a zombie that its reaper has not seen yet."""
    async with asyncio.timeout(10):
        while _runs(pid):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("stubborn", [False, True])
async def test_an_interrupt_ends_the_command_and_all_that_it_started(
    connector: Connector, running: Running, stubborn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accord.relay.gateway.agent._GRACE_SECONDS", 0.2)
    ignore = "trap '' TERM; " if stubborn else ""
    script = f"{ignore}sleep 300 & echo $$ $!; wait; sleep 300"
    async with running(command_agent(["sh", "-c", script])) as gateway:
        await gateway.reached(GatewayState.RUNNING)
        await connector.deliver(message("go"), "b-1")
        await connector.until(lambda: bool(connector.texts))
        shell, child = map(int, connector.texts[0].split())
        assert os.getpgid(child) == shell
        await connector.interrupt("agent:main:web:group:s=s1:c=c1:u=u1")
        await ended(shell)
        await ended(child)
        assert gateway.health.state is GatewayState.RUNNING
    assert gateway.counts["turns interrupted"] == 1


async def test_a_turn_that_nobody_reads_to_its_end_ends_the_command(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    script = f"echo $$ > {mark}; echo first; sleep 300"
    async with aclosing(run_agent(command_agent(["sh", "-c", script]), turn())) as parts:
        async for part in parts:
            assert part == "first\n"
            break
    await ended(int(mark.read_text()))
