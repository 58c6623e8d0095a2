"""Invites as QR codes: for a terminal, and as SVG for a page."""

import io

import segno


def as_terminal(text: str) -> str:
    """A QR code in half blocks, for a terminal with light text on a dark ground.

    An invite takes about 97 columns and 49 lines.
    """
    drawn = io.StringIO()
    _code(text).terminal(drawn, compact=True)
    return drawn.getvalue()


def as_svg(text: str, *, scale: int = 4) -> str:
    """A QR code as an SVG element, black on white."""
    return _code(text).svg_inline(scale=scale, light="white")


def _code(text: str) -> segno.QRCode:
    # An invite is long: the lowest correction keeps the modules large enough for a camera.
    return segno.make_qr(text, error="l", boost_error=False)
