"""Three stations: one with a model, one with documents, and one that has neither and asks both."""

import asyncio
import contextlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import httpx2
import openai
import pytest
from tests.e2e.owners import Owner, agree, console_answer, until
from tests.fakes.model_server import MODEL, ModelServer, model_server
from typer.testing import CliRunner

from accord.cli import app
from accord.testing.processes import Child

pytestmark = pytest.mark.slow

QUESTION = "At what angle does a ladder lean?"
CHAT = (
    "--params",
    json.dumps({"model": MODEL}),
    "--input",
    json.dumps({"messages": [{"role": "user", "content": "Say hello"}]}),
)
LADDERS = "A ladder leans at an angle of four to one: one metre out for four metres up.\n"


class Street:
    """Three neighbours: `smith` has a model, `reader` has documents, `guest` has neither."""

    def __init__(self, folder: Path, server: ModelServer) -> None:
        self.smith = Owner("smith", folder)
        self.reader = Owner("reader", folder)
        self.guest = Owner("guest", folder)
        self.server = server
        self.community = ""
        self.stations: dict[str, Child] = {}

    @property
    def owners(self) -> tuple[Owner, ...]:
        return self.smith, self.reader, self.guest

    def token(self, owner: Owner) -> str:
        return (owner.home / "keys" / "door.token").read_text().strip()

    def client(self, owner: Owner) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            base_url=f"{owner.address}/v1", api_key=self.token(owner), max_retries=0, timeout=60
        )


@contextlib.contextmanager
def street(
    folder: Path, monkeypatch: pytest.MonkeyPatch, models: tuple[str, ...] = ("smith",)
) -> Iterator[Street]:
    """The three stations, which know each other; `models` are those with a model."""
    with contextlib.ExitStack() as opened:
        server = opened.enter_context(model_server())
        made = Street(folder, server)
        for owner in made.owners:
            with monkeypatch.context() as environment:
                environment.setenv("ACCORD_MODELS__EMBEDDED", "false")
                environment.setenv("ACCORD_ROUTING__SILENCE_SECONDS", "5")
                environment.setenv("ACCORD_ROUTING__FIRST_SECONDS", "10")
                environment.setenv("ACCORD_CONCIERGE__ENABLED", "false")
                if owner.name in models:
                    environment.setenv(
                        "ACCORD_MODELS__SERVERS", json.dumps([f"{server.url}/v1 {MODEL}"])
                    )
                made.stations[owner.name] = opened.enter_context(owner.up())
        made.community = str(made.smith.ask("create", "Our street")["community_id"])
        for owner in (made.reader, made.guest):
            link = made.smith.run("invite", owner.run("id").strip(), "--level", "trusted").strip()
            owner.ask("join", link)
        agree(*made.owners)
        until(
            lambda: len(made.guest.ask("peers")["peers"]) == 2, "the guest has not met the others"
        )
        paper = folder / "Ladders.md"
        paper.write_text(f"# Ladders\n\n{LADDERS}")
        run(made.reader, "rag", "add", "library", str(paper), "--licence", "CC0-1.0")
        agree(*made.owners)
        yield made


def run(owner: Owner, *words: str) -> Any:
    result = CliRunner().invoke(app, [*words, "--home", str(owner.home), "--json"])
    assert result.exit_code == 0, f"{words}: {result.exception!r} {result.output}"
    return json.loads(result.stdout)


def page(owner: Owner, name: str) -> str:
    link = run(owner, "console", "link")["link"]
    with httpx.Client(base_url=owner.address, timeout=60) as http:
        http.post("/console/login", data={"link": link.partition("=")[2]})
        return http.get(f"/console/{name}").text


async def spoken(client: openai.AsyncOpenAI, model: str, question: str) -> list[str]:
    """The pieces of a streamed answer."""
    messages: Any = [{"role": "user", "content": question}]
    async with await client.chat.completions.create(
        model=model, messages=messages, stream=True
    ) as stream:
        deltas = [chunk.choices[0].delta.content async for chunk in stream if chunk.choices]
    return [each for each in deltas if each]


async def mcp_answer(owner: Owner, token: str, question: str) -> tuple[list[str], Any]:
    from mcp.client import Client
    from mcp.client.streamable_http import streamable_http_client

    headers = {"Authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(headers=headers, trust_env=False, timeout=60) as http:
        transport = streamable_http_client(f"{owner.address}/mcp", http_client=http)
        async with Client(transport) as client:
            tools = [each.name for each in (await client.list_tools()).tools]
            answer = await client.call_tool(
                "experimental_rag_answer", {"params": {}, "input": {"question": question}}
            )
            return tools, answer


def test_a_station_with_neither_answers_by_one_neighbours_model_from_anothers_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with street(tmp_path, monkeypatch) as found:
        guest, server = found.guest, found.server

        # The openai client: a model by name, and the documents by the model `concierge`.
        client = found.client(guest)

        async def by_openai() -> tuple[list[str], list[str], list[str]]:
            async with client:
                listed = [each.id async for each in await client.models.list()]
                said = await spoken(client, MODEL, "Say hello")
                cited = await spoken(client, "concierge", QUESTION)
                return listed, said, cited

        listed, said, cited = asyncio.run(by_openai())
        assert {MODEL, "concierge"} <= set(listed)
        assert len(said) == 2
        assert "hello" in "".join(said)
        assert len(cited) > 3
        assert "Ladders" in "".join(cited)
        assert "on reader" in "".join(cited)
        assert LADDERS.split(":")[0] in server.prompts[-1]

        # An MCP client.
        tools, answer = asyncio.run(mcp_answer(guest, found.token(guest), QUESTION))
        assert {"llm_chat", "rag_query", "experimental_rag_search"} <= set(tools)
        assert not answer.is_error
        (source,) = answer.structured_content["output"]["sources"]
        assert (source["title"], source["node"], source["corpus"]) == (
            "Ladders",
            "reader",
            "library",
        )

        # The concierge and the console.
        told = run(guest, "concierge", "ask", QUESTION)
        assert told["outcome"] == "answered"
        assert told["model"] == MODEL
        assert "on reader" in told["answer"]
        shown = console_answer(guest, QUESTION)
        assert "four to one" in shown
        assert "reader" in shown

        # The command line says where a call goes, and why.
        routes = guest.ask("route", "llm.chat", "--model", MODEL, "--why")["routes"]
        assert [(each["name"], each["usable"]) for each in routes] == [
            ("smith", True),
            *(((each["name"]), False) for each in routes[1:]),
        ]
        assert any(each["rule"] == "route.capability" for each in routes[1]["reasons"])
        body = {"messages": [{"role": "user", "content": "Say hello"}], "stream": False}
        called = json.loads(guest.run("call", "llm.chat", *CHAT[:3], json.dumps(body)))
        assert called["output"]["message"]["content"] == "Say hello "


def test_a_serving_node_that_is_killed_in_the_middle_gives_a_clear_error_and_no_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with street(tmp_path, monkeypatch) as found:
        guest = found.guest
        client = found.client(guest)
        found.server.hold()

        async def broken() -> tuple[list[str], Exception | None]:
            messages: Any = [{"role": "user", "content": "one two three four five six"}]
            pieces: list[str] = []
            async with client:
                try:
                    async with await client.chat.completions.create(
                        model=MODEL, messages=messages, stream=True
                    ) as stream:
                        async for chunk in stream:
                            if chunk.choices and chunk.choices[0].delta.content:
                                pieces.append(chunk.choices[0].delta.content)
                            if len(pieces) == 1:
                                found.stations["smith"].kill()
                except openai.APIError as error:
                    return pieces, error
            return pieces, None

        pieces, error = asyncio.run(asyncio.wait_for(broken(), 60))
        assert pieces
        assert error is not None
        assert "smith" in str(error)
        # The node is known to be lost, so that the next call does not wait for it.
        shown = CliRunner().invoke(
            app, ["community", "route", "llm.chat", "--why", "--home", str(guest.home)]
        )
        assert shown.exit_code == 1
        assert "route.lost" in shown.stdout
        with pytest.raises(AssertionError, match="no node of the community"):
            guest.run("call", "llm.chat", *CHAT, "--stream")


def test_another_node_takes_over_when_one_dies_before_its_first_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with street(tmp_path, monkeypatch, models=("smith", "reader")) as found:
        guest = found.guest
        until(
            lambda: len([r for r in guest.ask("route", "llm.chat")["routes"] if r["usable"]]) == 2,
            "the guest does not know both",
        )
        first = guest.ask("route", "llm.chat")["routes"][0]["name"]
        found.server.hold(before=0)
        with ThreadPoolExecutor(1) as beside:
            answering = beside.submit(guest.run, "call", "llm.chat", *CHAT, "--stream")
            until(lambda: len(found.server.prompts) == 1, "nobody is asked")
            found.stations[first].kill()
            until(lambda: len(found.server.prompts) == 2, "nobody takes over")
            found.server.release()
            frames = [json.loads(line) for line in answering.result(60).splitlines()]
        assert "".join(each["data"].get("text", "") for each in frames) == "Say hello "
        assert frames[-1]["event"] == "done"


# A station whose model misbehaves as it is told by a file in its home.
BAD = """
import asyncio, json
from pathlib import Path
from accord.capabilities.llm import BackendModel
from accord.community.bus import Frame, calls
from accord.community.rules import capabilities, wire
from accord.station import load
from accord.station.community import CommunityPlane
from accord.station.run import serve

wire.is_allowed = lambda *_: True  # it does not look at what it sends
HOME = Path(load().home)

async def chat(call):
    how = (HOME / "how").read_text()
    if how == "garbage":
        yield Frame("token", {"words": 5})
    while how == "endless":
        yield Frame("token", {"text": "la "})
        await asyncio.sleep(0)
    if how == "slow":
        await asyncio.sleep(3600)
    if how == "lie":
        raise calls.CommunityError(calls.Code.NOT_IMPLEMENTED, "no such model")
    yield Frame("token", {"text": "bad "})
    if how == "change":
        node.bus.registry.deregister("llm.chat@1.1")
    yield Frame("done", {"tokens_out": 1, "stop_reason": "end", "ms": 1})

def offer(found, clock):
    global node
    node = found
    described = capabilities.load_descriptors("accord.capabilities.llm")["llm.chat@1.1"]
    node.machine.look = lambda: None
    node.machine.hardware = lambda: {"gpu": "RTX 9090", "vram_gb": 1000, "cpu_cores": 512}
    node.bus.registry.register(
        described, chat, params={"model": "parrot-7b", "models": ["parrot-7b"]}
    )

serve(
    load(),
    announce=lambda ground, _: print(json.dumps({"address": ground.address}), flush=True),
    assemble=lambda ground: [
        CommunityPlane(ground.settings, ground.key, ground.clock, more=(offer,), with_models=False)
    ],
)
"""


LONG = [pytest.param(how, marks=pytest.mark.long) for how in ("slow", "lie", "endless", "change")]


@pytest.mark.parametrize("how", ["garbage", *LONG])
def test_a_bad_node_is_bounded_remembered_and_routed_around(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    bad = Owner("bad", tmp_path)
    with street(tmp_path, monkeypatch) as found, bad.up("-c", BAD):
        guest = found.guest
        (bad.home / "how").write_text(how)
        link = found.smith.run("invite", bad.run("id").strip(), "--level", "trusted").strip()
        bad.ask("join", link)
        # It says that it has a better machine than anybody, and is asked first.
        until(
            lambda: guest.ask("route", "llm.chat")["routes"][0]["name"] == "bad",
            "the bad node is not known",
        )
        result = CliRunner().invoke(
            app,
            ["community", "call", "llm.chat", *CHAT, "--stream", "--home", str(guest.home)],
        )
        spoken = "".join(
            json.loads(line)["data"].get("text", "") for line in result.stdout.splitlines()
        )
        assert len(spoken) < 20_000
        if how in ("garbage", "slow", "lie"):
            assert spoken == "Say hello "
            assert result.exit_code == 0
        elif how == "endless":
            assert "longer than it may be" in str(result.exception)
        else:
            assert spoken == "bad "
        until(
            lambda: guest.ask("route", "llm.chat")["routes"][0]["name"] == "smith",
            "it is still asked first",
        )
        routes = guest.ask("route", "llm.chat", "--why")["routes"]
        (against,) = [each["reasons"][0] for each in routes if each["name"] == "bad"]
        expected = "route.capability" if how == "change" else "route.barred"
        assert against["rule"] == expected
        lines = guest.run("call", "llm.chat", *CHAT, "--stream").splitlines()
        again = [json.loads(line) for line in lines]
        assert "".join(each["data"].get("text", "") for each in again) == "Say hello "
        if how != "change":
            # The memory outlives the process, and the owner can end it.
            assert "bars" in (guest.home / "barred-nodes.json").read_text()
            routes = guest.ask("route", "llm.chat", "--pardon", "bad")["routes"]
            assert any(each["name"] == "bad" and each["usable"] for each in routes)
