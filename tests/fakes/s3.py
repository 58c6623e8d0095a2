"""A server of S3 on loopback, which a test can let answer 503 for a while."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.request import Request, urlopen

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

KEYS = {
    "AWS_ACCESS_KEY_ID": "an-id",
    "AWS_SECRET_ACCESS_KEY": "a-secret-key",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""What a client must find in its environment."""


@dataclass
class S3Server:
    """The server's address, and how many requests it refuses from now on."""

    application: Any
    url: str = ""
    busy: int = 0
    refused: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        with self.lock:
            if self.busy:
                self.busy -= 1
                self.refused += 1
                start("503 Slow Down", [("Content-Type", "application/xml")])
                return [b"<Error><Code>SlowDown</Code><Message>later</Message></Error>"]
        answer: Iterable[bytes] = self.application(environ, start)
        return answer


@contextmanager
def s3_server(bucket: str) -> Iterator[S3Server]:
    """A server with one bucket."""
    server = S3Server(DomainDispatcherApplication(create_backend_app))
    http = make_server("127.0.0.1", 0, server, threaded=True)
    server.url = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        # Its content belongs to the process.
        for path, method in (("moto-api/reset", "POST"), (bucket, "PUT")):
            with urlopen(Request(f"{server.url}/{path}", method=method)):
                pass
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
