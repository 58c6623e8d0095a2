"""`accord bridge http` as a process, over sockets, before a service that stops and comes back."""

import asyncio
import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from accord.testing.processes import Child, python_child
from accord.testing.servers import reserved_port

pytestmark = pytest.mark.slow

TILL = '''
from pathlib import Path

from pydantic import BaseModel

from accord.fabric import DeclaredError, TypedService

service = TypedService("till@v1", "Takes money.")


class Money(BaseModel):
    """An amount."""

    cents: int


class TooLittleError(DeclaredError):
    """That is too little."""

    missing: int


@service.rpc(once=True, errors=[TooLittleError])
async def pay(money: Money) -> Money:
    """Pay once; answers how often somebody paid."""
    if money.cents < 100:
        raise TooLittleError(missing=100 - money.cents)
    with Path("paid").open("a") as file:
        print(money.cents, file=file)
    return Money(cents=len(Path("paid").read_text().splitlines()))
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the service, and a home whose authority has a port of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACCORD_HOME", str(tmp_path / "home"))
    (tmp_path / "till.py").write_text(TILL)
    with reserved_port() as port:
        monkeypatch.setenv("ACCORD_STATION__PORT", str(port))
        with command("authority", "serve"):
            yield tmp_path


@contextmanager
def command(*words: str, told: str = "") -> Iterator[tuple[Child, dict[str, Any]]]:
    """A command of ours, and what it said when it was up: the line that has the member `told`."""
    with python_child("-m", "accord.cli", *words, "--json") as child:
        said: dict[str, Any] = json.loads(child.read_line(within=60))
        while told and told not in said:
            said = json.loads(child.read_line(within=60))
        yield child, said


@contextmanager
def service() -> Iterator[Child]:
    with command("service", "dev", "till.py", "--no-open", told="page") as (child, _):
        yield child


@contextmanager
def bridge() -> Iterator[httpx.Client]:
    """A client of the bridge, with its token."""
    with command("bridge", "http", "till.contract.json", "--within", "5") as (_, said):
        token = Path(said["token_file"]).read_text().strip()
        assert Path(said["token_file"]).stat().st_mode & 0o077 == 0
        headers = {"authorization": f"Bearer {token}"}
        with httpx.Client(base_url=said["url"], headers=headers, timeout=60) as client:
            yield client


def pay(client: httpx.Client, cents: Any, key: str = "") -> httpx.Response:
    headers = {"idempotency-key": key} if key else {}
    return client.post("/rpc/Till.Pay", json={"cents": cents}, headers=headers)


def test_rpcs_errors_and_keys_over_a_socket_and_a_service_that_comes_back(folder: Path) -> None:
    with service() as serving, bridge() as client:
        assert "/rpc/Till.Pay" in client.get("/openapi.json").json()["paths"]
        assert pay(client, 500).json() == {"cents": 1}
        assert pay(client, 500, "order-1").json() == {"cents": 2}
        assert pay(client, 500, "order-1").json() == {"cents": 2}
        assert pay(client, 700, "order-1").status_code == 409
        little = pay(client, 30)
        assert (little.status_code, little.json()["missing"]) == (400, 70)
        wrong = pay(client, "much")
        assert (wrong.status_code, wrong.json()["issues"][0]["path"]) == (422, "/cents")
        assert client.post("/rpc/Till.Refund", json={}).status_code == 404
        for given in ("", "Bearer", "Bearer another", client.headers["authorization"] + "x"):
            refused = httpx.post(
                client.base_url.join("/rpc/Till.Pay"),
                json={"cents": 500},
                headers={"authorization": given},
            )
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"] == "Bearer"
        # Killed at once: nobody answers, and the bridge stays.
        os.kill(serving.pid, signal.SIGKILL)
        while (gone := pay(client, 30)).status_code != 503:
            # Its worker hears of it, and answers or fails what comes until then.
            assert gone.status_code in (400, 502, 504), gone.text
        assert gone.json()["type"] == "UnavailableError"
        with service():
            while (paid := pay(client, 900, "order-2")).status_code != 200:
                assert paid.status_code == 503, paid.text
            assert paid.json() == {"cents": 3}
            # What the killed instance had answered is not done again.
            assert pay(client, 500, "order-1").json() == {"cents": 2}
    assert Path("paid").read_text().split() == ["500", "500", "900"]


def test_what_is_too_large_and_too_many_requests_are_refused(folder: Path) -> None:
    with service(), bridge() as client:
        headers = {"content-type": "application/json"}
        large = b'{"cents": 500' + b" " * (1 << 20) + b"}"
        assert client.post("/rpc/Till.Pay", content=large, headers=headers).status_code == 413

        def parts() -> Iterator[bytes]:
            yield from (large[at : at + 65536] for at in range(0, len(large), 65536))

        chunked = client.post("/rpc/Till.Pay", content=parts(), headers=headers)
        assert chunked.status_code == 413
        # What is only announced is refused, too, and nothing is waited for.
        address = (str(client.base_url.host), client.base_url.port or 0)
        with socket.create_connection(address, timeout=60) as opened:
            announced = (
                "POST /rpc/Till.Pay HTTP/1.1\r\nHost: bridge\r\nContent-Type: application/json\r\n"
                f"Authorization: {client.headers['authorization']}\r\n"
                f"Content-Length: {1 << 40}\r\n\r\n"
            )
            opened.sendall(announced.encode())
            assert opened.makefile("rb").readline().split()[1] == b"413"
        assert pay(client, 100).json() == {"cents": 1}

        async def flood() -> list[httpx.Response]:
            limits = httpx.Limits(max_connections=20)
            async with httpx.AsyncClient(base_url=client.base_url, limits=limits) as many:
                asked = [many.post("/rpc/Till.Pay", json={}, timeout=120) for _ in range(600)]
                return await asyncio.gather(*asked)

        answers = asyncio.run(flood())
        # One address has a limit, and may go on later.
        limited = [answer for answer in answers if answer.status_code == 429]
        assert limited
        assert {answer.status_code for answer in answers} <= {401, 429}
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in limited)
        while (answer := pay(client, 200)).status_code == 429:
            pass
        assert answer.json() == {"cents": 2}
