"""The configuration of structlog and `logging`, with redaction of secrets in one place."""

import logging
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from accord.station.sections import LogSettings
from accord.telemetry import tracing

REDACTED = "[redacted]"

# Libraries that log details at `info`.
_CHATTY = ("alembic", "httpx", "uvicorn")

_FILE_BYTES = 10_000_000
_FILES_KEPT = 5

_SECRET_NAME = re.compile(
    r"secret|token|passw(?:or)?d|passphrase|authori[sz]ation|cookie|credential|seed"
    r"|(?<!public)(?<!public[_-])[_-]?key$|key[_-]?material",
    re.IGNORECASE,
)
# Secrets in running text: the password of a URL, the credentials of an HTTP header, and
# `name=value` or `"name": value` with a telling name.
_SECRET_TEXT = (
    (re.compile(r"(\w://[^\s/:@]*:)[^\s/@]+(?=@)"), rf"\1{REDACTED}"),
    (re.compile(r"\b(bearer|basic) +[\w.~+/=-]{6,}", re.IGNORECASE), rf"\1 {REDACTED}"),
    (
        re.compile(
            r"\b(\w*(?:secret|token|passw(?:or)?d|passphrase|seed)(?:\s*=\s*|[\"']\s*:\s*))"
            r"[\"']?[^\s\"',;]+",
            re.IGNORECASE,
        ),
        rf"\1{REDACTED}",
    ),
)


def scrub(text: str) -> str:
    """Redact recognisable secrets in running text."""
    for pattern, replacement in _SECRET_TEXT:
        text = pattern.sub(replacement, text)
    return text


def redact(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """The processor that redacts every line just before it is written."""
    return {name: _clean(name, value) for name, value in event.items()}


def name_trace(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """The processor that adds the trace id."""
    place = tracing.current_trace()
    if place is not None:
        event.setdefault("trace_id", place.id)
    return event


def _clean(name: str, value: object) -> object:
    if _SECRET_NAME.search(name) and value is not None:
        return REDACTED
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, Mapping):
        return {str(key): _clean(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_clean("", inner) for inner in value]
    return value if isinstance(value, bool | int | float | None) else scrub(repr(value))


@contextmanager
def configured(
    settings: LogSettings,
    *,
    stream: TextIO | None = None,
    file: Path | None = None,
    problems_only: bool = False,
) -> Iterator[None]:
    """Send every log line to `stream` (stderr) and, as JSON, to `file`, until the block ends.

    With `problems_only` the stream gets warnings and errors alone.
    """
    stream = stream or sys.stderr
    console = settings.format == "console" or (settings.format == "auto" and stream.isatty())
    handlers: list[logging.Handler] = [logging.StreamHandler(stream)]
    handlers[0].setFormatter(_formatter(_console(stream) if console else _json()))
    if problems_only:
        handlers[0].setLevel(logging.WARNING)
    if file:
        handlers.append(
            RotatingFileHandler(file, maxBytes=_FILE_BYTES, backupCount=_FILES_KEPT, delay=True)
        )
        handlers[1].setFormatter(_formatter(_json()))
    structlog.configure(
        processors=[*_SHARED, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    root = logging.getLogger()
    levels = dict.fromkeys(_CHATTY, "WARNING") if settings.level == "info" else {}
    levels[""] = settings.level.upper()
    before = {name: logging.getLogger(name or None).level for name in levels}
    for name, level in levels.items():
        logging.getLogger(name or None).setLevel(level)
    for handler in handlers:
        root.addHandler(handler)
    try:
        yield
    finally:
        for name, was in before.items():
            logging.getLogger(name or None).setLevel(was)
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()


def set_level(level: str) -> None:
    """Log from this level on, from now on; the handlers stay."""
    for name in _CHATTY:
        logging.getLogger(name).setLevel("WARNING" if level == "info" else logging.NOTSET)
    logging.getLogger().setLevel(level.upper())


_SHARED: list[Processor] = [
    structlog.stdlib.filter_by_level,
    structlog.contextvars.merge_contextvars,
    name_trace,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.stdlib.ExtraAdder(),
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.StackInfoRenderer(),
    # Tracebacks become text here, so that they are redacted, too.
    structlog.processors.format_exc_info,
]


def _formatter(renderer: Processor) -> logging.Formatter:
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_SHARED[1:],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            redact,
            renderer,
        ],
    )


def _json() -> Processor:
    return structlog.processors.JSONRenderer(ensure_ascii=False)


def _console(stream: TextIO) -> Processor:
    return structlog.dev.ConsoleRenderer(
        colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback
    )
