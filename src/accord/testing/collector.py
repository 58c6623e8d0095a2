"""A strict OTLP/HTTP collector of spans, as a process.

    with collector(folder) as receiver:
        ...  # a station with [telemetry] traces = receiver.url
        receiver.spans()

It can also fail every request, or never answer. From a shell: `python -m accord.testing.collector
FILE PORT`.
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

from accord.testing.processes import python_child

CollectorMode = Literal["take", "fail", "hang"]

_TYPE: Final = "application/x-protobuf"
_PATH: Final = "/v1/traces"
_TRACE_BYTES: Final = 16
_SPAN_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class SpanCollector:
    """A running collector; it writes a line for each span to `file`."""

    url: str
    file: Path

    def spans(self) -> list[dict[str, Any]]:
        """Return every span received, in the order of their ends."""
        return [each for each in self._lines() if "name" in each]

    def faults(self) -> list[str]:
        """Return what was wrong with refused requests."""
        return [each["fault"] for each in self._lines() if "fault" in each]

    def _lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.file.read_text().splitlines()]


@contextmanager
def collector(folder: Path, mode: CollectorMode = "take") -> Iterator[SpanCollector]:
    """Run a collector that writes to a folder."""
    file = folder / "spans.jsonl"
    file.touch()
    with python_child("-m", __name__, str(file), "0", mode) as child:
        yield SpanCollector(child.read_line(), file)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    file: Path
    mode: CollectorMode

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.mode == "hang":
            threading.Event().wait()
        if self.mode == "fail":
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
        """Log nothing."""

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
    """Return the spans of a request, or raise `ValueError` if it is malformed."""
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


def _main(file: str, port: str, mode: str = "take") -> None:
    _Handler.file, _Handler.mode = Path(file), mode  # type: ignore[assignment]
    server = ThreadingHTTPServer(("127.0.0.1", int(port)), _Handler)
    server.daemon_threads = True
    sys.stdout.write(f"http://127.0.0.1:{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    _main(*sys.argv[1:])
