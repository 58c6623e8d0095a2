"""A node that offers media, and pages and recordings for it."""

import base64
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
from PIL import Image, ImageDraw, ImageFont

from accord.capabilities.media import open_media
from accord.capabilities.settings import MediaSettings
from accord.community.client import Client, LocalTransport
from accord.community.node import Node, open_node
from accord.kernel.clock import SystemClock
from accord.kernel.signing import SigningKey

CLOCK = SystemClock()
_FONT = Path(mpl.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"

LETTER = (
    "How to clean rain water",
    "Boil it for ten minutes, then let it cool.",
    "Größere Mengen filtert man über Sand.",
)


def page(lines: Sequence[str]) -> Image.Image:
    """A white page with lines of print, as a scanner gives it."""
    picture = Image.new("L", (900, 100 + 60 * len(lines)), "white")
    draw = ImageDraw.Draw(picture)
    font = ImageFont.truetype(str(_FONT), 32)
    for number, line in enumerate(lines):
        draw.text((50, 50 + 60 * number), line, fill="black", font=font)
    return picture


def saved(picture: Image.Image, form: str, **told: Any) -> bytes:
    made = BytesIO()
    picture.save(made, form, **told)
    return made.getvalue()


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


@dataclass(frozen=True)
class Offering:
    """A node, and calls of its own capabilities."""

    node: Node
    client: Client

    async def __call__(
        self, capability: str, given: Mapping[str, Any], **params: Any
    ) -> dict[str, Any]:
        return await self.client.call(capability, params, given)


@asynccontextmanager
async def offering(home: Path, settings: MediaSettings) -> AsyncIterator[Offering]:
    key = SigningKey.from_seed(b"m" * 32)
    async with (
        open_media(settings) as media,
        open_node(
            key,
            home=home,
            stores=home / "stores",
            clock=CLOCK,
            register=lambda node: media.register(node, CLOCK),
        ) as node,
    ):
        await node.found("Our street", {})
        community = next(iter(node.communities))
        async with Client(
            "http://node",
            key,
            community,
            key.id,
            transport=LocalTransport(node.application()),
            seconds=120,
        ) as client:
            yield Offering(node, client)
