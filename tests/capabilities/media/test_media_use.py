"""Media by OpenAI's client, by the command line, and for documents that are scanned."""

import shutil
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.capabilities.doors.conftest import CLOCK, Echo, Lengths, opened_house
from tests.capabilities.homes import Home
from tests.capabilities.media.conftest import LETTER, page, saved
from tests.capabilities.rag.conftest import opened as opened_corpora

from accord.capabilities.doors import Door, DoorScope
from accord.capabilities.media import open_media
from accord.capabilities.rag import Corpora, words
from accord.capabilities.settings import MediaSettings
from accord.community.errors import CommunityError


@pytest.mark.slow
async def test_openais_client_speaks_and_transcribes_with_a_key_for_these_models(
    tmp_path: Path,
) -> None:
    async with (
        opened_house(tmp_path, Echo(), Lengths()) as house,
        open_media(MediaSettings()) as media,
    ):
        media.register(house.node, CLOCK)
        scope = DoorScope(frozenset({Door.OPENAI}), models=("espeak-ng", "pocketsphinx"))
        _, key = house.keys.mint("voice", scope, seconds=600, now=CLOCK.now())
        async with openai.AsyncOpenAI(
            base_url=f"{house.url}/v1", api_key=key, max_retries=0
        ) as client:
            listed = [each.id async for each in await client.models.list()]
            assert sorted(listed) == ["espeak-ng", "pocketsphinx"]
            said = await client.audio.speech.create(
                model="espeak-ng",
                voice="alloy",
                input="Please open the window and bring some water.",
                response_format="wav",
                speed=0.9,
            )
            recording = ("said.wav", said.content)
            heard = await client.audio.transcriptions.create(model="pocketsphinx", file=recording)
            assert {"window", "bring", "water"} & set(heard.text.split())
            said_by: Any = {"model": "espeak-ng", "voice": "alloy"}
            with pytest.raises(openai.BadRequestError, match="WAV"):
                await client.audio.transcriptions.create(model="pocketsphinx", file=b"ID3")
            with pytest.raises(openai.BadRequestError, match="Only wav"):
                await client.audio.speech.create(**said_by, input="x", response_format="mp3")
            with pytest.raises(openai.BadRequestError):
                await client.audio.speech.create(**said_by, input="")
            with pytest.raises(openai.PermissionDeniedError, match="does not open"):
                await client.audio.speech.create(**{**said_by, "model": "echo"}, input="x")


async def test_a_scanned_document_is_found_by_what_is_printed_on_it(tmp_path: Path) -> None:
    async with (
        opened_corpora(tmp_path) as library,
        open_media(MediaSettings()) as media,
    ):
        scan = saved(page(LETTER), "PDF", resolution=100)
        assert "the document has no text" in str(await library.refused(scan))
        assert "unsupported" in str(await library.refused(saved(page(LETTER), "PNG")))
        library.corpora = Corpora(
            library.store, words.word_tokens(), None, read_pages=media.read_document
        )
        await library.ingest(scan, title="Letter")
        assert await library.ask("Wie filtert man größere Mengen?") == ["Letter"]
        with pytest.raises(CommunityError, match="unsupported media type"):
            await library.ingest(b"\x89PNG\r\n\x1a\n broken", title="Broken")
        empty = await library.refused(saved(page(["", ""]), "PNG"))
        assert "the document has no text" in str(empty)


@pytest.mark.slow
def test_the_command_line_lists_speaks_and_reads(tmp_path: Path, founded: Path) -> None:
    home = tmp_path / "home"
    shutil.copytree(founded, home)
    accord = Home(home)
    offers = accord("media", "list", "--json")["offers"]
    assert {each["verb"] for each in offers} == {"transcribe", "speak", "read"}
    assert all("without an accelerator" in each["about"] for each in offers)
    letter = tmp_path / "letter.png"
    letter.write_bytes(saved(page(LETTER), "PNG"))
    assert accord("media", "read", str(letter)).splitlines() == list(LETTER)
    out = tmp_path / "said.wav"
    told = accord("media", "speak", "Guten Tag", "--language", "de", "--out", str(out), "--json")
    assert out.stat().st_size == told["bytes"] > 1000
    refused = accord("media", "translate", "Tag", "--to", "en")
    assert "experimental.trans.translate" in refused
    assert refused.startswith("error: ")
    assert "No such file" in accord("media", "read", str(tmp_path / "gone.png"))
