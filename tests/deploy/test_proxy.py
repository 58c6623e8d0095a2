"""A real proxy with our file before a real connector."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from tests.e2e.owners import until
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from accord.testing.processes import python_child
from accord.testing.servers import reserved_port

CADDYFILE = Path(__file__).parents[2] / "deploy" / "proxy" / "Caddyfile"


@contextmanager
def proxied(
    program: str, folder: Path, relay: int, authority: int, connectors: str
) -> Iterator[str]:
    environment = {
        "HOME": str(folder),
        "RELAY_NAME": f"http://127.0.0.1:{relay}",
        "AUTHORITY_NAME": f"http://127.0.0.1:{authority}",
        "CONNECTORS": connectors,
        "AUTHORITY": connectors,
    }
    # The file has no word about Caddy's own administration, which has a port of its own.
    text = CADDYFILE.read_text().replace("{\n\tservers", "{\n\tadmin off\n\tservers", 1)
    assert "admin off" in text
    (folder / "Caddyfile").write_text(text)
    with (folder / "caddy.log").open("wb") as log:
        words = [program, "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]
        proxy = subprocess.Popen(words, env=environment, stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{relay}"
    finally:
        proxy.terminate()
        proxy.wait(15)


def test_people_and_gateways_come_through_and_nobody_sees_the_figures(
    tmp_path: Path,
) -> None:
    caddy = str(Path(sys.executable).parent / "caddy")
    environment = {
        "ACCORD_HOME": str(tmp_path / "home"),
        "ACCORD_STATION__PORT": "0",
        "ACCORD_RELAY__PROXIES": '["127.0.0.1/32"]',
    }
    with ExitStack() as opened:
        relay, authority = (opened.enter_context(reserved_port()) for _ in range(2))
        words = ("-m", "accord.cli", "relay", "serve", "--json")
        child = opened.enter_context(python_child(*words, env=environment))
        address = json.loads(child.read_line())["address"]
        upstream = address.removeprefix("http://")
        front = opened.enter_context(proxied(caddy, tmp_path, relay, authority, upstream))
        client = opened.enter_context(httpx.Client(base_url=front, trust_env=False))

        def answers() -> bool:
            try:
                return client.get("/chat/").status_code == 200
            except httpx.TransportError:
                return False

        until(answers, "the proxy does not answer")
        for hidden in ("/metrics", "/readyz", "/livez", "/console", "/console/agents"):
            assert client.get(hidden).status_code == 404, hidden
        assert httpx.get(f"{address}/readyz", trust_env=False).status_code == 200
        socket = opened.enter_context(connect(f"{front.replace('http', 'ws')}/relay"))
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(10)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 4401, "a gateway without its token is refused by us"
