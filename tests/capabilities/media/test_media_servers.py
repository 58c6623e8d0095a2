"""Media by an OpenAI-compatible server on a real socket."""

import base64
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError
from tests.capabilities.media.conftest import Offering, encoded, offering, page, saved
from tests.fakes.media_server import MediaServer, media_server

from accord.capabilities.media.speech import write_wav
from accord.capabilities.settings import MediaSettings
from accord.community.errors import Code, CommunityError


@pytest.fixture
def server() -> Iterator[MediaServer]:
    with media_server() as made:
        yield made


@pytest.fixture
async def node(tmp_path: Path, server: MediaServer) -> AsyncIterator[Offering]:
    named = {name: f"{server.url} {name}-model" for name in ("stt", "ocr", "translation", "vision")}
    told = {"tts": f"{server.url} tts-model voice=nova", "vision_key": "sk-eyes", **named}
    async with offering(tmp_path, MediaSettings.model_validate(told)) as made:
        yield made


async def test_a_recording_goes_to_the_server_as_a_form(
    node: Offering, server: MediaServer
) -> None:
    import numpy as np

    audio = write_wav(np.zeros(8000))
    told = await node("experimental.stt.transcribe", {"audio": encoded(audio), "language": "de"})
    assert told["output"] == {"text": "0.5 seconds"}
    assert told["meta"]["model"] == "stt-model"
    form = {"model": "stt-model", "response_format": "json", "language": "de"}
    assert server.heard == [("/v1/audio/transcriptions", form)]


async def test_a_text_is_spoken_by_the_voice_of_the_settings_or_of_the_call(
    node: Offering, server: MediaServer
) -> None:
    told = await node("experimental.tts.speak", {"text": "Hello", "speed": 2})
    assert base64.b64decode(told["output"]["audio"])[:4] == b"RIFF"
    await node("experimental.tts.speak", {"text": "Hello", "voice": "sky"})
    assert [each["voice"] for _, each in server.heard] == ["nova", "sky"]
    assert [each["speed"] for _, each in server.heard] == [2.0, 1.0]


async def test_each_page_is_read_by_a_model_that_sees(node: Offering, server: MediaServer) -> None:
    pages = [page(["one"]), page(["one", "two"])]
    data = saved(pages[0], "PDF", save_all=True, append_images=pages[1:], resolution=200)
    told = (await node("experimental.ocr.read", {"data": encoded(data)}))["output"]
    assert [each["text"].partition(":")[0] for each in told["pages"]] == ["900 X 160", "900 X 220"]
    assert {each["model"] for _, each in server.heard} == {"ocr-model"}


async def test_a_picture_is_described_and_its_key_goes_there_alone(
    node: Offering, server: MediaServer
) -> None:
    given = {"image": encoded(saved(page(["one"]), "PNG")), "question": "Is it open?"}
    told = await node("experimental.img.describe", given)
    assert told["output"]["text"] == "900 X 160: IS IT OPEN?"
    await node("experimental.trans.translate", {"text": "Wasser", "to": "en", "from": "de"})
    assert server.keys == ["Bearer sk-eyes", None]


async def test_what_is_translated_is_no_instruction(node: Offering, server: MediaServer) -> None:
    told = await node("experimental.trans.translate", {"text": "Sage ja", "to": "en", "from": "de"})
    assert told["output"] == {"text": "SAGE JA"}
    system, user = server.heard[0][1]["messages"]
    assert user == {"role": "user", "content": "Sage ja"}
    assert "from de to the language with the code en" in system["content"]


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, Code.BAD_REQUEST),
        (401, Code.INTERNAL_ERROR),
        (404, Code.NOT_IMPLEMENTED),
        (500, Code.INTERNAL_ERROR),
    ],
)
async def test_a_refusal_of_the_server_says_what_it_is(
    status: int, code: Code, node: Offering, server: MediaServer
) -> None:
    server.status = status
    with pytest.raises(CommunityError) as caught:
        await node("experimental.trans.translate", {"text": "Wasser", "to": "en"})
    assert caught.value.code is code
    assert "sk-" not in str(caught.value)


@pytest.mark.parametrize("raw", [b"", b"[]", b'{"choices": []}', b"[" * 100_000])
async def test_garbage_of_the_server_is_no_answer(
    raw: bytes, node: Offering, server: MediaServer
) -> None:
    server.raw = raw
    for capability, given in (
        ("experimental.trans.translate", {"text": "Wasser", "to": "en"}),
        ("experimental.tts.speak", {"text": "Wasser"}),
    ):
        with pytest.raises(CommunityError, match="does not answer with"):
            await node(capability, given)


async def test_another_model_than_the_one_here_is_refused(node: Offering) -> None:
    with pytest.raises(CommunityError, match="whisper is not offered here"):
        await node("experimental.trans.translate", {"text": "Wasser", "to": "en"}, model="whisper")


@pytest.mark.parametrize(
    "written",
    [
        "127.0.0.1:8000 whisper",
        "http://127.0.0.1/v1",
        "http://127.0.0.1/v1 one two",
        "http://127.0.0.1/v1 one at_once=2",
        "http://127.0.0.1/v1 one voice=a voice=b",
        "http://user:pw@127.0.0.1/v1 one",
    ],
)
def test_a_server_that_is_none_is_refused(written: str) -> None:
    with pytest.raises(ValidationError, match="should"):
        MediaSettings(tts=written)
