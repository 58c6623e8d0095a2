"""The engines that come as wheels: print is read, words are spoken and heard."""

import base64
import wave
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from tests.capabilities.media.conftest import LETTER, Offering, encoded, offering, page, saved

from accord.capabilities.media import open_media
from accord.capabilities.settings import MediaSettings
from accord.community.errors import Code, CommunityError

OCR, TTS, STT = "experimental.ocr.read", "experimental.tts.speak", "experimental.stt.transcribe"


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Offering]:
    async with offering(tmp_path, MediaSettings()) as made:
        yield made


async def test_the_print_of_a_page_is_read_with_its_umlauts(node: Offering) -> None:
    told = await node(OCR, {"data": encoded(saved(page(LETTER), "PNG"))})
    assert told["output"]["text"].split("\n") == list(LETTER)
    assert told["output"]["pages"] == [{"page": 1, "text": told["output"]["text"]}]
    assert told["meta"]["model"] == "pp-ocr"


@pytest.mark.slow
async def test_two_scanned_pages_of_a_pdf_are_read_in_order(node: Offering) -> None:
    pages = [page(["First page"]), page(["right", "second"])]
    data = saved(pages[0], "PDF", save_all=True, append_images=pages[1:], resolution=100)
    told = (await node(OCR, {"data": encoded(data)}))["output"]
    assert [each["text"] for each in told["pages"]] == ["First page", "right\nsecond"]
    with pytest.raises(CommunityError, match="has 2 pages, and at most 1 are read"):
        await node(OCR, {"data": encoded(data), "pages": 1})


@pytest.mark.slow
async def test_what_is_said_is_heard_again(node: Offering) -> None:
    said = await node(TTS, {"text": "Please open the window and bring some water.", "speed": 0.9})
    assert said["output"]["media_type"] == "audio/wav"
    audio = base64.b64decode(said["output"]["audio"])
    with wave.open(BytesIO(audio)) as file:
        assert file.getframerate() == 16_000
        assert 2 < file.getnframes() / 16_000 < 8
    heard = (await node(STT, {"audio": encoded(audio), "language": "en"}))["output"]["text"]
    assert {"window", "bring", "water"} & set(heard.split())


async def test_german_sounds_other_than_english(node: Offering) -> None:
    told = [
        (await node(TTS, {"text": "Wasser", "language": language}))["output"]["audio"]
        for language in ("de", "en")
    ]
    assert told[0] != told[1]


@pytest.mark.parametrize(
    ("capability", "given", "says"),
    [
        (OCR, {"data": encoded(b"no picture at all")}, "unsupported media type"),
        (OCR, {"data": encoded(b"\x89PNG\r\n\x1a\n broken")}, "unsupported media type"),
        (OCR, {"data": encoded(b"%PDF-1.7 broken")}, "the PDF is damaged or locked"),
        (OCR, {"data": "a b!"}, "expected base64"),
        (STT, {"audio": encoded(b"ID3 an MP3")}, "not a WAV file"),
        (STT, {"audio": encoded(b"RIFF"), "language": "de"}, "pocketsphinx is not made for de"),
        (TTS, {"text": "x", "language": "xx"}, "espeak-ng is not made for xx"),
        pytest.param(
            *(TTS, {"text": "word " * 799, "speed": 0.25}, "too long to be spoken"),
            marks=pytest.mark.slow,
        ),
    ],
)
async def test_bad_input_is_refused_in_a_sentence(
    capability: str, given: dict[str, object], says: str, node: Offering
) -> None:
    with pytest.raises(CommunityError, match=says) as caught:
        await node(capability, given)
    assert caught.value.code is Code.BAD_REQUEST


async def test_a_picture_with_too_many_pixels_is_not_opened(node: Offering) -> None:
    from PIL import Image

    data = saved(Image.new("1", (20_000, 20_000)), "PNG")
    assert len(data) < 100_000
    with pytest.raises(CommunityError, match="more than 40000000 pixels"):
        await node(OCR, {"data": encoded(data)})


async def test_silence_has_no_words(node: Offering) -> None:
    made = BytesIO()
    with wave.open(made, "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(44_100)
        file.writeframes(np.zeros(44_100, "<i2").tobytes())
    told = await node(STT, {"audio": encoded(made.getvalue())})
    assert len(told["output"]["text"].split()) <= 1


async def test_the_manifest_says_what_each_can_do_without_an_accelerator(node: Offering) -> None:
    offered = {each["name"]: each["params"] for each in node.node.bus.registry.listings()}
    assert offered[STT]["languages"] == ["en"]
    assert {"de", "en", "es"} <= set(offered[TTS]["languages"])
    for name in (OCR, TTS, STT):
        assert "without an accelerator" in offered[name]["about"]
    assert "experimental.img.describe" not in offered, "it takes a server"


async def test_without_wheels_nothing_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    async with open_media(MediaSettings()) as media:
        assert not media.engines
    async with open_media(MediaSettings(embedded=False)) as media:
        assert not media.reads_pages
