"""A whole authority in a process of its own: operators, services and people meet there."""

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from tests.authority.identities.conftest import READ, WRITE, client_contract, notes
from typer.testing import CliRunner

from accord.cli import app
from accord.contracts import digest, with_baseline
from accord.contracts.session_proof import flow_message, login_message, prove, session_key
from accord.fabric import App, Authority, BootstrapError, FabricError, Service
from accord.kernel.signing import SigningKey
from accord.testing.processes import Child, python_child

PASSWORD = "correct horse battery"


def service_contract() -> dict[str, Any]:
    asked = {
        "contract": "trellis.auth@v1",
        "rpc": {"call": ["Auth.Sessions.Resolve"]},
        "events": {"subscribe": ["Auth.Sessions.Revoked"]},
    }
    return with_baseline({**notes(), "uses": {"required": {"auth": asked}}})


@dataclass
class Served:
    """A running authority, and the commands of its operator."""

    home: Path
    address: str
    child: Child

    def run(self, *words: str) -> Any:
        """What a command says to a program."""
        command = ["authority", *words, "--home", str(self.home), "--json"]
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, f"{words}: {result.exception} {result.output}"
        return json.loads(result.stdout)

    async def told(self, *words: str) -> Any:
        return await asyncio.to_thread(self.run, *words)

    def manifest(self, contract: dict[str, Any]) -> str:
        file = self.home / f"{contract['id']}.json"
        file.write_text(json.dumps(contract))
        return str(file)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    home = tmp_path / "home"
    arguments = ("authority", "serve", "--home", str(home), "--port", "0", "--json")
    with python_child(
        "-m", "accord.cli", *arguments, env={"ACCORD_AUTHORITY__NATS_PORT": "0"}
    ) as child:
        address = json.loads(child.read_line())["address"]
        yield Served(home, address, child)
        child.terminate()
        assert child.wait() == 0
        child.assert_gone()


async def log_in(address: str, link: str, key: SigningKey, contract: dict[str, Any]) -> None:
    """What a person with a fresh link does in a browser, and the app beside it."""
    back = "http://localhost:1/back"
    async with httpx.AsyncClient(base_url=address) as http:

        async def submit(page: httpx.Response, **fields: str) -> httpx.Response:
            action = page.text.partition('action="')[2].partition('"')[0]
            hidden = dict(re.findall('type="hidden" name="([^"]*)" value="([^"]*)"', page.text))
            return await http.post(action, data={**hidden, **fields})

        assert (await submit(await http.get(link))).status_code == 303
        begun = await http.post(
            "/auth/v1/logins",
            json={
                "sessionKey": session_key(key),
                "redirectTo": back,
                "contractDigest": digest(contract),
                "manifest": contract,
                "sig": prove(key, login_message(back)),
            },
        )
        allowed = await submit(await http.get(begun.json()["loginUrl"]), answer="accept")
        flow = parse_qs(urlsplit(allowed.headers["location"]).query)["flowId"][0]
        bound = await http.post(
            f"/auth/v1/flows/{flow}/bind",
            json={"sessionKey": session_key(key), "sig": prove(key, flow_message(flow))},
        )
        assert bound.status_code == 200


async def test_a_service_is_deployed_a_person_calls_it_and_loses_what_is_taken_away(
    served: Served,
) -> None:
    contract = service_contract()
    plan = (await served.told("deploy", "notes", served.manifest(contract)))["plan"]
    assert plan["state"] == "pending"
    assert (await served.told("plans"))["plans"] == [plan]
    key_file = served.home / "notes.key"
    await served.told("instance", "add", "notes", "--key-file", str(key_file), "--name", "notes-1")
    service = Service(
        contract, key=SigningKey.load(key_file), authority=Authority(served.address, 30)
    )
    added: list[str] = []

    @service.rpc("Notes.List")
    async def _(_request: Any, _payload: Any) -> Any:
        return {"notes": added}

    @service.rpc("Notes.Add")
    async def _(request: Any, payload: Any) -> Any:
        added.append(f"{payload['text']} by {request.who.holder}")
        return {}

    async def accept() -> None:
        await served.told("accept", plan["id"], "--by", "olga")

    accepting = asyncio.create_task(accept())
    async with service.connect():
        await accepting
        assert [each["live"] for each in (await served.told("offers"))["offers"]] == [True]
        made = await served.told(
            "people", "add", "Ann", "--capability", READ, "--capability", WRITE
        )
        key, desk = SigningKey.generate(), client_contract("Notes.List", "Notes.Add")
        await log_in(served.address, made["url"], key, desk)
        session_app = App(desk, key=key, authority=Authority(served.address, 20))
        async with session_app.connect() as session:
            client = session.client(contract)
            await client.call("Notes.Add", {"text": "milk"})
            assert await client.call("Notes.List", {}) == {"notes": ["milk by person"]}
            await served.told("people", "set", "Ann", "--revoke", WRITE)
            # It is cut off, comes again by itself, and is given less.
            async with asyncio.timeout(20):
                while True:
                    try:
                        await client.call("Notes.Add", {"text": "more"}, within=1)
                    except FabricError:
                        break
            async with asyncio.timeout(20):
                while True:
                    try:
                        told = await client.call("Notes.List", {}, within=1)
                        break
                    except FabricError:
                        continue
            assert told["notes"][0] == "milk by person"
            await served.told("people", "set", "Ann", "--disable")
            with pytest.raises(BootstrapError) as over:
                async with asyncio.timeout(20):
                    await session.ended()
            assert over.value.code == "revoked"
        assert (await served.told("reconcile"))["reconciled"] == [
            {"deployment": "notes", "status": "current", "why": None}
        ]
    acts = [each["act"] for each in (await served.told("history"))["history"]]
    assert {"created", "presented", "accepted", "instance_added", "offered", "revoked"} <= set(acts)
