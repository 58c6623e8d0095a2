"""Speech, text of pictures, translation and descriptions of pictures on the bus.

All of them are experimental. Each is done by a server that the settings name, else by an engine of
this machine, and is not offered where there is neither.
"""

import base64
import binascii
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import structlog

from accord.capabilities import models
from accord.capabilities.llm.queue import GenerationQueue
from accord.capabilities.media import engines, servers, speech
from accord.capabilities.model_server import ModelServer
from accord.capabilities.settings import MediaSettings, split_media
from accord.community.bus import Call
from accord.community.errors import CommunityError, bad_request
from accord.community.node import Node
from accord.community.rules import capabilities
from accord.kernel.clock import Clock

_log = structlog.stdlib.get_logger(__name__)

_OCR_LANGUAGES: Final = ("zh", "en", "ja", "de", "fr", "es", "it", "pt", "nl", "pl", "sv", "da")
_PAGES: Final = 20
_MOST_AUDIO: Final = 5 * 1024 * 1024
_MOST_TEXT: Final = 200_000


@dataclass(frozen=True, slots=True)
class MediaEngine:
    """What does one of the capabilities.

    Attributes:
        model: The model, as callers may name it.
        languages: Those that it is made for; empty if only its server knows.
        about: What may be expected of it, and of a machine without an accelerator.
        server: None for an engine of this machine.
        voice: The voice of a server that speaks.
    """

    model: str
    languages: tuple[str, ...]
    about: str
    server: ModelServer | None = None
    voice: str = ""


@dataclass(frozen=True, slots=True)
class MediaEngines:
    """The engines of a node, by capability, behind one queue."""

    engines: Mapping[str, MediaEngine]
    queue: GenerationQueue
    seconds: float
    document_pages: int

    def register(self, node: Node, _clock: Clock) -> None:
        """Offer what there is on a node's bus."""
        descriptors = capabilities.load_descriptors("accord.capabilities.media")
        for name, engine in self.engines.items():
            params: dict[str, Any] = {
                "model": engine.model,
                "models": [engine.model],
                "about": engine.about,
            }
            if engine.languages:
                params["languages"] = list(engine.languages)
            node.bus.registry.register(
                descriptors[f"{name}@1.0"],
                _Served(self, engine, _HANDLERS[name]).serve,
                params=params,
                max_concurrent=self.queue.max_concurrent + self.queue.max_waiting,
                seconds=self.seconds,
            )

    @property
    def reads_pages(self) -> bool:
        """Whether the text of pictures is recognised here."""
        return OCR in self.engines

    async def read_document(self, data: bytes) -> Sequence[str]:
        """Return the text of each page of a picture or PDF, for a corpus."""
        async with self.queue.turn():
            return await self.read_pages(self.engines[OCR], data, self.document_pages)

    async def read_pages(self, engine: MediaEngine, data: bytes, most: int) -> list[str]:
        """Return the text of each page; `bad_request` if there are more than `most`."""
        read = engines.read_pages if engine.server is None else engines.picture_pages
        told = await read(data, most=most, seconds=self.seconds)
        if told["count"] > most:
            raise bad_request(
                f"the file has {told['count']} pages, and at most {most} are read",
                mend="cut it into parts",
            )
        if engine.server is None:
            return list(told["pages"])
        return [await servers.read_picture(engine.server, each) for each in told["pages"]]


@dataclass(frozen=True, slots=True)
class _Served:
    media: MediaEngines
    engine: MediaEngine
    handler: "_Handler"

    async def serve(self, call: Call) -> Mapping[str, Any]:
        wanted = call.body["params"].get("model", self.engine.model)
        if wanted != self.engine.model:
            raise bad_request(
                f"{wanted} is not offered here",
                where="/params/model",
                mend=f"ask for {self.engine.model}",
            )
        async with self.media.queue.turn():
            output = await self.handler(self.media, self.engine, call.body["input"])
        return call.answer(output, model=self.engine.model)


async def _transcribe(
    media: MediaEngines, engine: MediaEngine, given: Mapping[str, Any]
) -> dict[str, Any]:
    audio, language = _bytes(given, "audio"), given.get("language")
    if engine.server is not None:
        return {"text": await servers.transcribe(engine.server, audio, language)}
    _check_language(engine, language)
    return {"text": await engines.transcribe(audio, seconds=media.seconds)}


async def _speak(
    media: MediaEngines, engine: MediaEngine, given: Mapping[str, Any]
) -> dict[str, Any]:
    text, speed = given["text"], float(given.get("speed", 1))
    language = given.get("language", "en")
    if engine.server is not None:
        audio = await servers.speak(engine.server, text, given.get("voice", engine.voice), speed)
    else:
        _check_language(engine, language)
        audio = await engines.speak(text, language=language, speed=speed, seconds=media.seconds)
    if len(audio) > _MOST_AUDIO:
        raise bad_request("the text is too long to be spoken at once", "/input/text")
    return {"audio": base64.b64encode(audio).decode(), "media_type": "audio/wav"}


async def _read(
    media: MediaEngines, engine: MediaEngine, given: Mapping[str, Any]
) -> dict[str, Any]:
    pages = await media.read_pages(engine, _bytes(given, "data"), given.get("pages", _PAGES))
    told = [{"page": page, "text": text} for page, text in enumerate(pages, start=1)]
    if sum(map(len, pages)) > _MOST_TEXT:
        raise bad_request("the pages have too much text for one answer", mend="ask for fewer")
    return {"text": "\n\n".join(filter(None, pages)), "pages": told}


async def _translate(
    _media: MediaEngines, engine: MediaEngine, given: Mapping[str, Any]
) -> dict[str, Any]:
    server = _server(engine)
    return {"text": await servers.translate(server, given["text"], given["to"], given.get("from"))}


async def _describe(
    _media: MediaEngines, engine: MediaEngine, given: Mapping[str, Any]
) -> dict[str, Any]:
    picture = _bytes(given, "image")
    if servers.picture_type(picture) is None:
        raise bad_request("this is no PNG, JPEG, WEBP or GIF", "/input/image")
    return {"text": await servers.describe(_server(engine), picture, given.get("question"))}


_Handler = Callable[[MediaEngines, MediaEngine, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
STT: Final = "experimental.stt.transcribe"
TTS: Final = "experimental.tts.speak"
OCR: Final = "experimental.ocr.read"
TRANSLATION: Final = "experimental.trans.translate"
VISION: Final = "experimental.img.describe"
_HANDLERS: Final[Mapping[str, _Handler]] = {
    STT: _transcribe,
    TTS: _speak,
    OCR: _read,
    TRANSLATION: _translate,
    VISION: _describe,
}


def _server(engine: MediaEngine) -> ModelServer:
    if engine.server is None:
        raise RuntimeError(f"{engine.model} is done by servers only")
    return engine.server


def _bytes(given: Mapping[str, Any], name: str) -> bytes:
    try:
        return base64.b64decode(given[name], validate=True)
    except (binascii.Error, ValueError):
        raise bad_request("expected base64", f"/input/{name}") from None


def _check_language(engine: MediaEngine, language: str | None) -> None:
    if language is not None and language.partition("-")[0] not in engine.languages:
        raise bad_request(
            f"{engine.model} is not made for {language}",
            "/input/language",
            mend=f"it is made for {', '.join(engine.languages[:20])}"
            f"{' and others' if len(engine.languages) > 20 else ''}; a server can do more",
        )


_BY_SERVER: Final = "By a server; what it needs and how good it is depends on its model."
_ABOUT: Final = {
    STT: "American English, spoken clearly: about every third word of a free sentence is wrong. "
    "Takes about a third of the recording's length on one processor, without an accelerator.",
    TTS: "Over a hundred languages by a machine's voice, understood rather than liked. Many times "
    "faster than speech on one processor, without an accelerator.",
    OCR: "Print in Latin script, Chinese and Japanese, on level lines and without columns; "
    "handwriting hardly. Some seconds for a page on one processor, without an accelerator.",
}


@asynccontextmanager
async def open_media(settings: MediaSettings) -> AsyncIterator[MediaEngines]:
    """Find servers and engines, and close what was opened at the end of the block."""
    async with AsyncExitStack() as opened:
        found: dict[str, MediaEngine] = {}
        for name, written, key in (
            (STT, settings.stt, settings.stt_key),
            (TTS, settings.tts, settings.tts_key),
            (OCR, settings.ocr, settings.ocr_key),
            (TRANSLATION, settings.translation, settings.translation_key),
            (VISION, settings.vision, settings.vision_key),
        ):
            if written:
                named = split_media(written)
                server = ModelServer(
                    named.url,
                    named.model,
                    key=key.get_secret_value(),
                    seconds=settings.seconds,
                )
                opened.push_async_callback(server.aclose)
                found[name] = MediaEngine(named.model, (), _BY_SERVER, server, named.voice)
            elif settings.embedded and name in _FINDERS:
                try:
                    found[name] = _FINDERS[name]()
                except CommunityError as error:
                    _log.info("a capability is not offered", capability=name, why=str(error))
        queue = GenerationQueue(
            max_concurrent=settings.max_concurrent, max_waiting=settings.max_waiting
        )
        yield MediaEngines(found, queue, settings.seconds, settings.document_pages)


def _find_transcriber() -> MediaEngine:
    models.require(("pocketsphinx", "numpy"), "media")
    return MediaEngine("pocketsphinx", ("en",), _ABOUT[STT])


def _find_speaker() -> MediaEngine:
    models.require(("numpy",), "media")
    return MediaEngine("espeak-ng", speech.spoken_languages(), _ABOUT[TTS])


def _find_reader() -> MediaEngine:
    models.require(("onnxruntime", "PIL", "pypdfium2", "numpy"), "media")
    models.ocr_folder()
    return MediaEngine("pp-ocr", _OCR_LANGUAGES, _ABOUT[OCR])


_FINDERS: Final = {STT: _find_transcriber, TTS: _find_speaker, OCR: _find_reader}
