"""Who comes through the doors, and who does not."""

import stat
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.responses import PlainTextResponse

from accord.capabilities.doors import Door, DoorAccess, DoorGuard, DoorKeys, door_token
from accord.community.client import LocalTransport
from accord.community.errors import CommunityError
from accord.kernel.clock import SystemClock

TOKEN = "t" * 32


async def test_without_the_token_a_door_stays_shut(house: Any) -> None:
    async with httpx.AsyncClient(trust_env=False) as http:
        for path in ("/v1/models", "/mcp"):
            for shown in (b"", b"Bearer", b"Bearer wrong", b"Basic abc", b"Bearer \xc3\xbc"):
                named = [(b"Authorization", shown)] if shown else []
                answer = await http.get(f"{house.url}{path}", headers=named)
                assert answer.status_code == 401, (path, shown)
                assert answer.json()["error"]["type"] == "invalid_request_error"
                assert house.token not in answer.text


async def get(address: str, host: str, token: str = TOKEN, **more: str) -> int:
    access = DoorAccess(TOKEN, DoorKeys(Path("/nowhere/keys.json")), SystemClock())
    app = DoorGuard(PlainTextResponse("come in"), access, Door.OPENAI)
    transport = LocalTransport(app, address=address)
    named = {"Authorization": f"Bearer {token}", "Host": host, **more}
    async with httpx.AsyncClient(transport=transport) as http:
        return (await http.get("http://door/v1/models", headers=named)).status_code


@pytest.mark.parametrize(
    "host", ["127.0.0.1:7070", "localhost", "localhost:80", "[::1]:7070", "[::1]"]
)
async def test_this_machine_comes_in_by_its_own_names(host: str) -> None:
    assert await get("127.0.0.1", host) == 200
    assert await get("::1", host) == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:7070", "", "localhost.evil:1", ":7070"]
)
async def test_a_name_that_somebody_else_gave_this_machine_is_refused(host: str) -> None:
    assert await get("127.0.0.1", host) == 401


async def test_another_machine_is_refused_even_with_the_token() -> None:
    assert await get("192.168.1.4", "127.0.0.1:7070") == 401


@pytest.mark.parametrize("header", ["Forwarded", "X-Forwarded-For", "X-Real-IP", "Via"])
async def test_whoever_comes_through_a_proxy_on_this_machine_is_not_on_this_machine(
    header: str,
) -> None:
    assert await get("127.0.0.1", "127.0.0.1:7070", **{header: "192.0.2.7"}) == 401


def test_the_token_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    file = tmp_path / "keys" / "door.token"
    token = door_token(file)
    assert len(token) >= 32
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert door_token(file) == token
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("content", [b"", b"short\n", b"\xff" * 40])
def test_a_token_that_protects_nothing_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "door.token"
    file.write_bytes(content)
    file.chmod(0o600)
    with pytest.raises(CommunityError) as refused:
        door_token(file)
    assert str(file) in str(refused.value)


def test_a_token_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "door.token"
    door_token(file)
    file.chmod(0o644)
    with pytest.raises(CommunityError, match="read by others"):
        door_token(file)
