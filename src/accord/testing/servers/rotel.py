"""A collector of telemetry, Rotel, from its wheel."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from accord.testing.servers.process import HOST, Program, Server, replies, reserved_port, running
from accord.testing.servers.wheels import program

_QUESTION = f"GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode()


@contextmanager
def rotel_server(to: str) -> Iterator[Server]:
    """Run a collector that takes spans by OTLP over HTTP and passes them on.

    Args:
        to: The address of the next collector, such as that of `accord.testing.collector`.
    """
    binary = program("rotel", "rotel/rotel-agent")
    with reserved_port() as grpc:

        def make(folder: Path, port: int) -> Program:
            taking = ["--otlp-http-endpoint", f"{HOST}:{port}"]
            taking += ["--otlp-grpc-endpoint", f"{HOST}:{grpc}"]
            passing = ["--exporter", "otlp", "--otlp-exporter-protocol", "http"]
            passing += ["--otlp-exporter-endpoint", to]
            place = ["--pid-file", str(folder / "pid")]
            return Program(
                [str(binary), "start", *place, *taking, *passing],
                answers=lambda: replies(port, _QUESTION, b"HTTP/1.1 "),
            )

        with running("rotel", make, lambda port: f"http://{HOST}:{port}") as server:
            yield server
