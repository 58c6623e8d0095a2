"""A collector of spans: a process that speaks OTLP over HTTP and is strict about it.

    with collector(folder) as receiver:
        ...  # a station with [telemetry] traces = receiver.url
        receiver.spans()

It reads requests by the protocol's own messages and refuses whatever does not keep to it; what was
refused is told by `faults`. It can also be one that fails, or never answers. By hand it is
`python -m accord.testing.collector FILE PORT`.
"""

import gzip
import json
import sys
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Literal

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

from accord.testing.faults import python_child

Manner = Literal["take", "fail", "hang"]

_TYPE: Final = "application/x-protobuf"
_PATH: Final = "/v1/traces"
_TRACE_BYTES: Final = 16
_SPAN_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Collector:
    """A collector that runs.

    Attributes:
        url: Where it listens.
        file: Where it writes what it gets, a line for each span.
    """

    url: str
    file: Path

    def spans(self) -> list[dict[str, Any]]:
        """Every span that it took, in the order of their ends."""
        return [each for each in self._lines() if "name" in each]

    def faults(self) -> list[str]:
        """What was wrong with requests that it refused."""
        return [each["fault"] for each in self._lines() if "fault" in each]

    def _lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.file.read_text().splitlines()]


@contextmanager
def collector(folder: Path, manner: Manner = "take") -> Iterator[Collector]:
    """Run a collector that keeps what it gets in a folder."""
    file = folder / "spans.jsonl"
    file.touch()
    with python_child("-m", __name__, str(file), "0", manner) as child:
        yield Collector(child.read_line(), file)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    file: Path
    manner: Manner

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.manner == "hang":
            threading.Event().wait()
        if self.manner == "fail":
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR)
            return
        try:
            told = _read(self.path, dict(self.headers), body)
        except (DecodeError, OSError, EOFError, zlib.error, ValueError) as error:
            self._keep([{"fault": str(error)}])
            self._answer(HTTPStatus.BAD_REQUEST)
            return
        self._keep(told)
        self._answer(HTTPStatus.OK, ExportTraceServiceResponse().SerializeToString())

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _keep(self, told: list[dict[str, Any]]) -> None:
        with self.file.open("a") as file:
            file.write("".join(f"{json.dumps(each)}\n" for each in told))

    def _answer(self, status: HTTPStatus, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Type", _TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _read(path: str, headers: dict[str, str], body: bytes) -> list[dict[str, Any]]:
    """The spans of a request.

    Raises:
        ValueError: It is not one of this protocol.
    """
    named = {name.lower(): value for name, value in headers.items()}
    if path != _PATH:
        raise ValueError(f"spans go to {_PATH}")
    if named.get("content-type") != _TYPE:
        raise ValueError(f"expected {_TYPE}")
    if (encoding := named.get("content-encoding", "identity")) not in ("gzip", "identity"):
        raise ValueError(f"{encoding} is not known here")
    request = ExportTraceServiceRequest.FromString(
        gzip.decompress(body) if encoding == "gzip" else body
    )
    told = [
        {
            "name": span.name,
            "trace_id": span.trace_id.hex(),
            "span_id": span.span_id.hex(),
            "parent_id": span.parent_span_id.hex(),
            "attributes": _attributes(span.attributes),
            "resource": _attributes(resource.resource.attributes),
            "scope": scope.scope.name,
            "nanoseconds": span.end_time_unix_nano - span.start_time_unix_nano,
            "authorization": named.get("authorization", ""),
        }
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    for each in told:
        if (len(each["trace_id"]), len(each["span_id"])) != (2 * _TRACE_BYTES, 2 * _SPAN_BYTES):
            raise ValueError("an id of a span has another length")
        if len(each["parent_id"]) not in (0, 2 * _SPAN_BYTES) or each["nanoseconds"] < 0:
            raise ValueError("a span has a bad parent, or ends before it began")
    return told


def _attributes(given: "Any") -> dict[str, Any]:
    pairs: list[KeyValue] = list(given)
    found = {each.key: getattr(each.value, each.value.WhichOneof("value") or "") for each in pairs}
    if len(found) != len(pairs):
        raise ValueError("an attribute comes twice")
    return found


def _main(file: str, port: str, manner: str = "take") -> None:
    _Handler.file, _Handler.manner = Path(file), manner  # type: ignore[assignment]
    server = ThreadingHTTPServer(("127.0.0.1", int(port)), _Handler)
    server.daemon_threads = True
    sys.stdout.write(f"http://127.0.0.1:{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    _main(*sys.argv[1:])
