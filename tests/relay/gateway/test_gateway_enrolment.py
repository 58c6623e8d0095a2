"""Spending an enrolment token, and keeping what it gives."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from accord.relay.errors import Code, RelayError
from accord.relay.gateway import (
    credentials_file,
    credentials_files,
    enrol,
    is_private,
    load_credentials,
)
from accord.station import listener

GIVEN = {"secret": "s3cret", "deliveryKey": "k", "tenant": "t1", "gatewayId": "gw"}


class Connector:
    """Answers an enrolment as a test says."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[Any] = []
        self.answer: Callable[[], Response] = lambda: JSONResponse(GIVEN)

    async def enroll(self, request: Request) -> Response:
        self.asked.append(await request.json())
        return self.answer()


@pytest.fixture
async def connector() -> AsyncIterator[Connector]:
    made = Connector()
    server = listener.Listener(
        Starlette(routes=[Route("/relay/enroll", made.enroll, methods=["POST"])])
    )
    with listener.bind("127.0.0.1", 0) as listening:
        made.url = listener.address(listening)
        serving = asyncio.create_task(server.serve([listening]))
        await server.serving.wait()
        yield made
        server.should_exit = True
        await serving


async def refusal(work: Awaitable[object]) -> RelayError:
    with pytest.raises(RelayError) as caught:
        await work
    assert "s3cret" not in str(caught.value)
    assert "t0ken" not in str(caught.value)
    return caught.value


def is_empty(folder: Path) -> bool:
    return not any(folder.iterdir())


@pytest.mark.parametrize("form", ["{}", "{}/", "{}/relay"])
async def test_what_a_connector_gives_is_kept_for_its_owner_only(
    connector: Connector, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    file = credentials_file("gw/1")
    url = form.format(connector.url)
    made = await enrol(url, "t0ken", "gw/1", file, wake_url="https://wake.example/")
    assert connector.asked == [
        {"enrollmentToken": "t0ken", "gatewayId": "gw/1", "wakeUrl": "https://wake.example/"}
    ]
    assert file.stat().st_mode & 0o777 == 0o600
    assert credentials_files() == [file]
    assert load_credentials(file) == made
    assert (made.secret, made.gateway_id, made.url) == ("s3cret", "gw", url)
    assert "s3cret" not in repr(made)


@pytest.mark.parametrize("name", ["..", ".", "../x", "/x", ".x", "a.b"])
def test_no_name_of_a_gateway_leads_out_of_its_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    aside = credentials_file("plain").parent.parent
    assert credentials_file(name).resolve().parent.parent == aside.resolve()


async def test_older_credentials_are_kept_and_the_token_unspent(
    connector: Connector, tmp_path: Path
) -> None:
    file = tmp_path / "gw.json"
    await enrol(connector.url, "t0ken", "gw", file)
    error = await refusal(enrol(connector.url, "t0ken", "gw", file))
    assert error.code is Code.CONFLICT
    assert len(connector.asked) == 1
    connector.answer = lambda: JSONResponse({**GIVEN, "secret": "newer"})
    await enrol(connector.url, "t0ken", "gw", file, replace=True)
    assert load_credentials(file).secret == "newer"


async def test_a_folder_that_cannot_be_made_leaves_the_token_unspent(
    connector: Connector, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    await refusal(enrol(connector.url, "t0ken", "gw", tmp_path / "file" / "deeper" / "gw.json"))
    assert connector.asked == []


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (lambda: JSONResponse({"error": "unauthorized", "message": "no"}, 401), Code.UNAUTHORIZED),
        (lambda: JSONResponse({"error": "expired", "message": "late"}, 410), Code.EXPIRED),
        (lambda: JSONResponse({"error": "odd"}, 500), Code.UNAVAILABLE),
        (lambda: JSONResponse({**GIVEN, "secret": ""}), Code.UNAVAILABLE),
        (lambda: JSONResponse({**GIVEN, "secret": 7}), Code.UNAVAILABLE),
        (lambda: JSONResponse([]), Code.UNAVAILABLE),
        (lambda: PlainTextResponse("hello"), Code.UNAVAILABLE),
        (lambda: PlainTextResponse("[" * 50_000), Code.UNAVAILABLE),
        (lambda: PlainTextResponse("x" * 1_000_000), Code.UNAVAILABLE),
        (lambda: RedirectResponse("http://127.0.0.1:9/relay/enroll", 307), Code.UNAVAILABLE),
    ],
)
async def test_a_refusal_or_nonsense_leaves_nothing_behind(
    connector: Connector, answer: Callable[[], Response], code: Code, tmp_path: Path
) -> None:
    connector.answer = answer
    error = await refusal(enrol(connector.url, "t0ken", "gw", tmp_path / "new" / "gw.json"))
    assert error.code is code
    assert is_empty(tmp_path)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "ftp://example", "nonsense", "http://["])
async def test_an_address_without_a_connector_is_one_sentence(url: str, tmp_path: Path) -> None:
    await refusal(enrol(url, "t0ken", "gw", tmp_path / "gw.json"))
    assert is_empty(tmp_path)


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"secret": 1}', '{"url":"x","more":"y"}'])
def test_damaged_credentials_are_refused(content: str, tmp_path: Path) -> None:
    file = tmp_path / "gw.json"
    file.write_text(content)
    file.chmod(0o600)
    with pytest.raises(RelayError, match="no gateway's credentials"):
        load_credentials(file)


def test_nobody_reads_along_on_this_machine_or_by_tls() -> None:
    for url in ("https://c.example", "WSS://c.example", "http://localhost:7070", "ws://[::1]:1"):
        assert is_private(url)
    for url in ("http://c.example", "ws://10.0.0.1:7070", "http://127.0.0.1.example", "http://["):
        assert not is_private(url)
