import io
import json
import logging
from pathlib import Path
from typing import Any, Literal

import pytest
import structlog

from accord.station.logs import REDACTED, configured, scrub
from accord.station.sections import LogSettings


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_elsewhere_than_on_a_terminal_every_line_is_json() -> None:
    stream = io.StringIO()
    with configured(LogSettings(), stream=stream):
        structlog.stdlib.get_logger("a.plane").info("it works", count=3)
    (line,) = lines(stream)
    assert (line["event"], line["count"], line["level"]) == ("it works", 3, "info")
    assert line["logger"] == "a.plane"
    assert line["timestamp"].endswith("Z")


def test_a_person_gets_lines_that_are_not_json() -> None:
    stream = io.StringIO()
    with configured(LogSettings(format="console"), stream=stream):
        structlog.stdlib.get_logger("a").warning("mind the gap", width=2)
    assert "mind the gap" in stream.getvalue()
    assert "width=2" in stream.getvalue()
    assert "{" not in stream.getvalue()


def test_lines_of_libraries_go_through_the_same_pipe() -> None:
    stream = io.StringIO()
    with configured(LogSettings(), stream=stream):
        structlog.contextvars.bind_contextvars(request="r1")
        try:
            logging.getLogger("uvicorn.error").warning("%s went wrong", "it", extra={"token": "t0"})
        finally:
            structlog.contextvars.clear_contextvars()
    (line,) = lines(stream)
    assert (line["event"], line["logger"]) == ("it went wrong", "uvicorn.error")
    assert (line["request"], line["token"]) == ("r1", REDACTED)


def test_lines_below_the_level_are_not_written() -> None:
    stream = io.StringIO()
    with configured(LogSettings(level="warning"), stream=stream):
        structlog.stdlib.get_logger("a").info("quiet")
        logging.getLogger("sqlalchemy").info("quiet")
        structlog.stdlib.get_logger("a").error("loud")
    assert [line["event"] for line in lines(stream)] == ["loud"]


@pytest.mark.parametrize(
    "name",
    [
        "secret",
        "client_secret",
        "token",
        "accessToken",
        "password",
        "db_passwd",
        "Authorization",
        "cookie",
        "seed",
        "key",
        "private_key",
        "signingKey",
        "api-key",
        "device_key",
        "key_material",
        "credentials",
    ],
)
@pytest.mark.parametrize("format_", ["json", "console"])
@pytest.mark.parametrize("value", ["hunter2", b"hunter2", ["hunter2"], {"x": "hunter2"}])
def test_a_value_under_a_name_that_tells_of_a_secret_never_appears(
    name: str, format_: Any, value: object
) -> None:
    stream = io.StringIO()
    with configured(LogSettings(format=format_), stream=stream):
        log = structlog.stdlib.get_logger("a")
        log.info("flat", **{name: value})
        log.info("deep", outer={"list": [{name: value}]})
    assert stream.getvalue().count(REDACTED) == 2
    assert "hunter2" not in stream.getvalue()


@pytest.mark.parametrize("name", ["key_id", "public_key", "publicKey", "keyboard", "address"])
def test_a_value_under_a_harmless_name_stays(name: str) -> None:
    stream = io.StringIO()
    with configured(LogSettings(), stream=stream):
        structlog.stdlib.get_logger("a").info("fine", **{name: "value"})
    assert lines(stream)[0][name] == "value"


def fail_to_reach(password: str) -> None:
    raise RuntimeError(f"cannot reach postgresql://me:{password}@db/x")


def test_a_traceback_tells_no_secret() -> None:
    formats: tuple[Literal["json", "console"], ...] = ("json", "console")
    for format_ in formats:
        stream = io.StringIO()
        with configured(LogSettings(format=format_), stream=stream):
            try:
                fail_to_reach("".join(["hun", "ter2"]))
            except RuntimeError:
                structlog.stdlib.get_logger("a").exception("failed")
        assert "RuntimeError" in stream.getvalue()
        assert "hunter2" not in stream.getvalue()


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("postgresql://me:hunter2@db/x", f"postgresql://me:{REDACTED}@db/x"),
        ("redis://:hunter2@db", f"redis://:{REDACTED}@db"),
        ("sent Bearer abc.def-ghi", f"sent Bearer {REDACTED}"),
        ("password=hunter2&x=1", f"password={REDACTED}"),
        ('{"token": "hunter2", "a": 1}', f'{{"token": {REDACTED}", "a": 1}}'),
        ("unexpected token: it is late", "unexpected token: it is late"),
        ("http://127.0.0.1:7070/readyz", "http://127.0.0.1:7070/readyz"),
    ],
)
def test_running_text_is_scrubbed_of_what_can_be_recognised(text: str, clean: str) -> None:
    assert scrub(text) == clean


def test_the_file_gets_json_and_is_closed_with_the_block(tmp_path: Path) -> None:
    file = tmp_path / "station.log"
    handlers = list(logging.getLogger().handlers)
    with configured(LogSettings(format="console"), stream=io.StringIO(), file=file):
        structlog.stdlib.get_logger("a").info("kept", password="hunter2")
    assert json.loads(file.read_text())["password"] == REDACTED
    assert logging.getLogger().handlers == handlers
