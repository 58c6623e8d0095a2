"""What the server's answers mean, however odd they are."""

from typing import Any, cast

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from accord.fabric import ConflictError, FabricError, UnavailableError, streams
from accord.fabric.link import Inbox


class Answering:
    """An inbox in which one answer lies."""

    def __init__(self, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.asked: list[tuple[str, bytes, dict[str, str]]] = []
        self._msg = Msg(_client=cast("Client", None), data=data, headers=headers)

    async def ask(self, subject: str, data: bytes, headers: dict[str, str], _: float) -> Msg:
        self.asked.append((subject, data, headers))
        return self._msg


def inbox(data: bytes) -> Inbox:
    return cast("Inbox", Answering(data))


def refusal(code: int) -> bytes:
    return b'{"error":{"code":400,"err_code":%d,"description":"no"}}' % code


async def test_what_is_appended_says_what_must_be_there() -> None:
    answering = Answering(b'{"stream":"S","seq":7}')
    asked = cast("Inbox", answering)
    assert await streams.append(asked, "a", b"x", last=3, message_id="m") == 7
    assert answering.asked[0][2] == {
        "Nats-Expected-Last-Subject-Sequence": "3",
        "Nats-Msg-Id": "m",
    }


@pytest.mark.parametrize(
    ("code", "kind"),
    [(10071, ConflictError), (10164, ConflictError), (10077, FabricError), (10054, FabricError)],
)
async def test_refusals_have_their_meaning(code: int, kind: type[FabricError]) -> None:
    with pytest.raises(kind) as caught:
        await streams.append(inbox(refusal(code)), "a", b"x")
    assert type(caught.value) is kind


@pytest.mark.parametrize("data", [b"", b"[]", b"nonsense", b'{"seq":"7"}', b"{}", refusal(1)])
async def test_an_answer_that_is_none_is_no_success(data: bytes) -> None:
    with pytest.raises(UnavailableError):
        await streams.append(inbox(data), "a", b"x")


async def test_what_is_not_there_is_none() -> None:
    assert await streams.last_on(inbox(refusal(10037)), "S", "a") is None


@pytest.mark.parametrize(
    "data",
    [
        b"{}",
        b'{"message":{}}',
        b'{"message":{"subject":"a","seq":1,"data":"*"}}',
        b'{"message":{"subject":"a","seq":1,"data":"","time":"soon"}}',
        b'{"message":5}',
    ],
)
async def test_a_message_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(UnavailableError):
        await streams.last_on(inbox(data), "S", "a")


async def test_headers_are_read_as_the_server_keeps_them() -> None:
    kept: Any = b"NATS/1.0\r\nKV-Operation: DEL\r\nodd\r\nA:b:c\r\n\r\n"
    assert streams.read_headers(kept) == {"KV-Operation": "DEL", "A": "b:c"}
