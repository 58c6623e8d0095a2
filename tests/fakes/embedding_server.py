"""A small OpenAI-compatible embeddings server in a thread.

It embeds with what it is given: by default a multilingual toy, in which words of four languages
that mean the same have the same direction.
"""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias

Embed: TypeAlias = Callable[[Sequence[str]], list[list[float]]]

MODEL = "polyglot"
DIMENSIONS = 8
LONGEST = 4000
_MEANINGS = (
    ("water", "wasser", "agua", "水"),
    ("clean", "reinig", "säuber", "limpi", "净", "清"),
    ("bread", "brot", "pan ", "面包"),
    ("power", "strom", "electricidad", "电"),
    ("shed", "schuppen", "cobertizo", "棚"),
    ("open", "geöffnet", "offen", "abiert", "abre", "开"),
    ("ladder", "leiter", "escalera", "梯"),
)


def polyglot(texts: Sequence[str]) -> list[list[float]]:
    """One direction for each meaning, and one for texts without any."""
    rows = []
    for text in texts:
        said = f"{text.casefold()} "
        row = [float(any(word in said for word in words)) for words in _MEANINGS]
        rows.append([*row, 0.0 if any(row) else 1.0])
    return rows


class EmbeddingServer:
    """What the server was asked, and what it answers.

    Attributes:
        heard: The texts of each request.
        keys: The header `Authorization` of each.
        status: Answered instead of embeddings unless it is 200.
        raw: Answered instead of embeddings unless it is None.
    """

    def __init__(self, embed: Embed) -> None:
        self.embed = embed
        self.url = ""
        self.heard: list[list[str]] = []
        self.keys: list[str | None] = []
        self.status = 200
        self.raw: bytes | None = None

    def answer(self, body: Any) -> tuple[int, bytes]:
        texts = body["input"]
        self.heard.append(texts)
        if self.status != 200:
            return self.status, b'{"error": {"message": "no"}}'
        if any(len(text) > LONGEST for text in texts):
            return 400, b'{"error": {"message": "too long"}}'
        if self.raw is not None:
            return 200, self.raw
        rows = list(enumerate(self.embed(texts)))
        data = [{"index": index, "embedding": row} for index, row in reversed(rows)]
        return 200, json.dumps({"object": "list", "data": data}).encode()


@contextmanager
def embedding_server(embed: Embed = polyglot) -> Iterator[EmbeddingServer]:
    """A server on a free port of this machine."""
    state = EmbeddingServer(embed)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_POST(self) -> None:
            state.keys.append(self.headers["authorization"])
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            status, raw = state.answer(body) if self.path == "/v1/embeddings" else (404, b"{}")
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    serving = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    serving.start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        serving.join()
