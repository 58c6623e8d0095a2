"""The settings of traces, apart from what records them: reading these loads no SDK."""

import re
from typing import Annotated, Final

from pydantic import Field, SecretStr, field_validator

from accord.kernel.section import Section

_HEADER: Final = re.compile(r"[A-Za-z0-9-]{1,100}", re.ASCII)


class TelemetrySettings(Section):
    """`[telemetry]`: where traces go, and how many of them."""

    traces: Annotated[
        str,
        Field(
            pattern=r"^(https?://[^\s/?#@]+(/[^\s?#]*)?)?$",
            description="the OTLP/HTTP collector that spans are sent to, such as "
            "`http://127.0.0.1:4318`; empty for what `OTEL_EXPORTER_OTLP_ENDPOINT` says, else none",
            examples=["http://127.0.0.1:4318"],
        ),
    ] = ""
    headers: Annotated[
        SecretStr,
        Field(
            description="what the collector wants to be told, such as `authorization=Bearer …`; "
            "several are parted by commas",
            examples=["authorization=Bearer …"],
        ),
    ] = SecretStr("")
    sample: Annotated[
        float, Field(ge=0, le=1, description="the share of traces that is recorded, by their ids")
    ] = 1.0

    @field_validator("headers")
    @classmethod
    def _headers_are_pairs(cls, headers: SecretStr) -> SecretStr:
        pairs(headers.get_secret_value())
        return headers


def pairs(headers: str) -> dict[str, str]:
    """Headers of HTTP from one text.

    Raises:
        ValueError: It is not written like `name=value,name=value`.
    """
    found = {}
    for each in filter(None, map(str.strip, headers.split(","))):
        name, _, value = (part.strip() for part in each.partition("="))
        if not _HEADER.fullmatch(name) or not value.isprintable() or not value:
            raise ValueError("should be pairs such as authorization=Bearer …, parted by commas")
        found[name] = value
    return found
