"""A small OpenAI-compatible server of speech and of models that see, in a thread.

It hears how long a recording is, says a text as one sample for each letter, and answers chats with
the number of pixels of their pictures and the last words of the user in capitals.
"""

import base64
import email.policy
import json
import struct
import threading
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from email.parser import BytesParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from typing import Any


class MediaServer:
    """What the server was asked, and what it answers.

    Attributes:
        heard: The path and the members of each request, without files.
        keys: The header `Authorization` of each.
        status: Answered instead of anything unless it is 200.
        raw: Answered as the body unless it is None.
    """

    def __init__(self) -> None:
        self.url = ""
        self.heard: list[tuple[str, dict[str, Any]]] = []
        self.keys: list[str | None] = []
        self.status = 200
        self.raw: bytes | None = None

    def answer(self, path: str, kind: str, body: bytes) -> bytes:
        if path == "/v1/audio/transcriptions":
            form, file = read_form(kind, body)
            self.heard.append((path, form))
            with wave.open(BytesIO(file)) as recording:
                seconds = recording.getnframes() / recording.getframerate()
            return json.dumps({"text": f" {seconds:.1f} seconds "}).encode()
        asked = json.loads(body)
        self.heard.append((path, asked))
        if path == "/v1/audio/speech":
            made = BytesIO()
            with wave.open(made, "wb") as file_:
                file_.setnchannels(1)
                file_.setsampwidth(2)
                file_.setframerate(8000)
                file_.writeframes(
                    struct.pack(f"<{len(asked['input'])}h", *range(len(asked["input"])))
                )
            return made.getvalue()
        said = asked["messages"][-1]["content"]
        if not isinstance(said, str):
            words, picture = said[0]["text"], said[1]["image_url"]["url"].partition(",")[2]
            size = struct.unpack(">II", base64.b64decode(picture)[16:24])
            said = f"{size[0]} x {size[1]}: {words}"
        message = {"role": "assistant", "content": said.upper()}
        return json.dumps({"choices": [{"index": 0, "message": message}]}).encode()


def read_form(kind: str, body: bytes) -> tuple[dict[str, str], bytes]:
    """The fields of a form, and its file."""
    parser = BytesParser(policy=email.policy.HTTP)
    message = parser.parsebytes(f"Content-Type: {kind}\r\n\r\n".encode() + body)
    form, file = {}, b""
    for part in message.iter_parts():
        content = part.get_payload(decode=True)
        assert isinstance(content, bytes)
        if part.get_filename():
            file = content
        else:
            form[str(part.get_param("name", header="content-disposition"))] = content.decode()
    return form, file


@contextmanager
def media_server() -> Iterator[MediaServer]:
    """A server on a free port of this machine."""
    state = MediaServer()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_POST(self) -> None:
            state.keys.append(self.headers["authorization"])
            body = self.rfile.read(int(self.headers["content-length"]))
            raw = state.answer(self.path, self.headers["content-type"], body)
            raw = raw if state.raw is None else state.raw
            self.send_response(state.status)
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
