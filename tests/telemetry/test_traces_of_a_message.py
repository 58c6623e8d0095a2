"""One trace shows every hop of one message: from the chat to the agent, its model, and back."""

import asyncio
import json
import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from sqlalchemy import text
from tests.concierge.concierge_bus import ScriptedBus
from tests.concierge.conftest import CLOCK, Open, Person, until
from tests.concierge.test_concierge_with_real_models import run

from accord.relay.connector import RELAY
from accord.relay.gateway import enrol
from accord.station.relay import operate_relay
from accord.storage import open_store
from accord.testing.collector import collector
from accord.testing.processes import python_child
from accord.testing.servers import rotel_server

pytestmark = pytest.mark.slow

QUESTION = "When is the tool shed open, and who has its key?"

HOPS = {
    "relay ingest",
    "relay gate",
    "relay deliver",
    "gateway turn",
    "bus request rag.query",
    "bus call rag.query",
    "rag query",
    "bus request llm.chat",
    "bus call llm.chat",
    "bus stream llm.chat",
    "llm generate",
    "gateway request",
    "relay outbound",
    "relay egress gate",
    "platform send",
}


def hops(spans: Iterable[tuple[str, Mapping[str, Any]]]) -> set[str]:
    """The names of spans, those of the bus with what was called."""
    return {f"{name} {told.get('accord.capability', '')}".strip() for name, told in spans}


def of(spans: Iterable[ReadableSpan]) -> list[tuple[str, Mapping[str, Any]]]:
    return [(span.name, span.attributes or {}) for span in spans]


async def test_one_trace_shows_every_hop_of_one_message_and_nothing_that_was_said(
    open_house: Open,
    home: Path,
    furnished: tuple[Path, dict[str, str]],
    recorded: InMemorySpanExporter,
) -> None:
    async with open_house(home=home) as house:
        ann = await house.person("Anastasia")
        lobby = await house.lobby()
        recorded.clear()
        shown = await ann.say(lobby, QUESTION, f"({furnished[1]['tools']})")
        await house.person("Bert")  # whose joining is nobody's message
    spans = recorded.get_finished_spans()
    (ingest,) = [each for each in spans if each.name == "relay ingest"]
    trace = ingest.context.trace_id
    story = [each for each in spans if each.context.trace_id == trace]
    assert hops(of(story)) >= HOPS
    known = {each.context.span_id for each in story}
    assert [each for each in story if each.parent is None] == [ingest]
    assert all(each.parent.span_id in known for each in story if each.parent)

    gate = next(dict(told) for name, told in of(story) if name == "relay gate")
    assert gate == {"accord.verdict": "deliver", "accord.deliveries": 1}
    model = next(dict(told) for name, told in of(story) if name == "llm generate")
    assert model["accord.tokens_out"] > 0

    told = " ".join(f"{each.to_json()}" for each in spans).lower()
    words = {*QUESTION.lower().split(), *shown[-1].lower().split(), "anastasia"}
    assert not {word for word in words if len(word) > 6 and word in told}

    async with open_store(home / "stores", RELAY) as store:
        rows = await store.read(lambda c: c.execute(text("SELECT stream, body FROM journal")).all())
    journaled = {
        stream: json.loads(body).get("trace_id")
        for stream, body in rows
        if stream in ("relay.inbound", "relay.outbound")
    }
    assert journaled == dict.fromkeys(("relay.inbound", "relay.outbound"), f"{trace:032x}")


async def test_a_station_sends_the_whole_story_to_a_collector_and_logs_under_the_same_id(
    home: Path, furnished: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    secret = "a-collector-s-secret"
    with collector(tmp_path) as kept, rotel_server(kept.url) as receiver:
        env = {
            "ACCORD_STATION__PORT": "0",
            "ACCORD_COMMUNITY__PORT": "0",
            "ACCORD_CONCIERGE__ENABLED": "true",
            "ACCORD_CONSOLE__ENABLED": "false",
            "ACCORD_PIPELINE__EXPORT_SECONDS": "0",
            "ACCORD_LOG__LEVEL": "debug",
            "ACCORD_TELEMETRY__TRACES": receiver.url,
            "ACCORD_TELEMETRY__HEADERS": f"authorization=Bearer {secret}",
        }
        with python_child(
            "-m", "accord.cli", "up", "--json", "--home", str(home), env=env
        ) as child:
            address = json.loads(await asyncio.to_thread(child.read_line))["address"]
            await until(lambda: httpx.get(f"{address}/readyz").status_code == 200)
            linked = home / "concierge" / "linked"
            words = ("relay", "chat", "invite", "--space", "lobby", "--json")
            invite = (await asyncio.to_thread(run, home, *words))["url"]
            async with httpx.AsyncClient(
                base_url=f"{address}/chat/api/", headers={"x-accord-chat": "1"}, timeout=100
            ) as http:
                ann = Person(http)
                asked = {"invite": invite.partition("#invite=")[2], "name": "ann"}
                ann.id = (await ann.ask("POST", "join", asked))["me"]["id"]
                await until(lambda: ann.id in linked.read_text())
                (space,) = (await ann.ask("GET", "me"))["spaces"]
                (lobby,) = (each["id"] for each in space["channels"])
                await ann.say(lobby, QUESTION, f"({furnished[1]['tools']})")
            child.terminate()
            assert await asyncio.to_thread(child.wait) == 0
        receiver.stop()  # passes on what it still has
        spans = kept.spans()
        assert kept.faults() == []
    (ingest,) = [each for each in spans if each["name"] == "relay ingest"]
    trace = ingest["trace_id"]
    story = [each for each in spans if each["trace_id"] == trace]
    assert hops((each["name"], each["attributes"]) for each in story) >= HOPS
    known = {each["span_id"] for each in story}
    assert all(each["parent_id"] in known for each in story if each is not ingest)
    assert {each["resource"]["service.name"] for each in spans} == {"accord"}

    logged = (home / "logs" / "station.log").read_text()
    lines = [json.loads(line) for line in logged.splitlines()]
    speakers = {each["logger"].partition(".")[0] for each in lines if each.get("trace_id") == trace}
    assert "httpx" in speakers  # a library's line, from within the concierge's turn
    assert secret not in logged

    event = ingest["attributes"]["accord.event"]
    why = await asyncio.to_thread(run, home, "relay", "why", event, "--json")
    assert why["trace_id"] == trace


async def test_an_agent_in_another_process_goes_on_with_the_trace_by_the_standard_variables(
    open_house: Open, recorded: InMemorySpanExporter, tmp_path: Path
) -> None:
    file = tmp_path / "shout.json"
    async with open_house(ScriptedBus()) as house:
        kitchen = await house.admin.create_space("kitchen")
        general = await house.admin.create_channel(kitchen.id, "general")
        async with operate_relay(house.settings, CLOCK, "test") as connector:
            await connector.control.route("default", "webchat", kitchen.id)
            token = (await connector.control.mint_token("default", "shout")).token
            await enrol(house.address, token, "shout", file)
            words = ["relay", "gateway", "run", "--file", str(file), "--inbox", "memory"]
            read = "import json, sys; print(json.load(sys.stdin)['event']['text'].upper())"
            shout = shlex.join([sys.executable, "-c", read])
            command = ["--command", shout, "--front", "webchat"]
            with (
                collector(tmp_path) as receiver,
                python_child(
                    *("-m", "accord.cli", *words, *command),
                    env={"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "OTEL_SERVICE_NAME": "shout"},
                ) as child,
            ):
                states = [await asyncio.to_thread(child.read_line) for _ in range(2)]
                assert states == ["connecting", "running"]
                ann = await house.person("ann", "kitchen", linked=False)
                await connector.control.bind("shout", "webchat", ann.id)
                assert await ann.say(general.id, "good morning", "GOOD MORNING")
                child.terminate()
                assert await asyncio.to_thread(child.wait) == 0
                theirs = receiver.spans()
    ours = {each.name: f"{each.context.trace_id:032x}" for each in recorded.get_finished_spans()}
    turn = next(each for each in theirs if each["name"] == "gateway turn")
    assert turn["trace_id"] == ours["relay ingest"] == ours["platform send"]
    assert turn["resource"]["service.name"] == "shout"
