"""A small OpenAI-compatible model server in a thread, which repeats what it was asked."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "parrot-7b"


class ModelServer:
    """What the server was asked, and whether it pauses after the first words."""

    def __init__(self, name: str = MODEL) -> None:
        self.name = name
        self.url = ""
        self.prompts: list[str] = []
        self.held = 0
        self._go_on = threading.Event()
        self._go_on.set()

    def hold(self, before: int = 1) -> None:
        """Send so many words of each answer, and the rest after `release`."""
        self.held = before
        self._go_on.clear()

    def release(self) -> None:
        self._go_on.set()

    def wait(self) -> None:
        self._go_on.wait(60)


@contextmanager
def model_server(name: str = MODEL) -> Iterator[ModelServer]:
    """A server on a free port of this machine."""
    state = ModelServer(name)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            listed = {"object": "list", "data": [{"id": state.name, "object": "model"}]}
            self._json(listed)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            prompt = "\n".join(str(each["content"]) for each in body["messages"])
            state.prompts.append(prompt)
            asked = str(body["messages"][-1]["content"])
            words = [f"{word} " for word in asked.split()[-24:]]
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            try:
                for place, word in enumerate(words):
                    if place == state.held:
                        state.wait()
                    self._chunk({"choices": [{"index": 0, "delta": {"content": word}}]})
                end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
                self._chunk(end)
                usage = {"prompt_tokens": len(prompt.split()), "completion_tokens": len(words)}
                self._chunk({"choices": [], "usage": usage})
                self.wfile.write(b"data: [DONE]\n\n")
            except OSError:
                pass  # whoever asked has gone

        def _chunk(self, chunk: dict[str, Any]) -> None:
            self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            self.wfile.flush()

        def _json(self, body: Any) -> None:
            raw = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield state
    finally:
        state.release()
        server.shutdown()
        server.server_close()
        serving.join()
