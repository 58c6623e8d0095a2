"""Pictures, and the pages of PDF files as pictures. To be used in a child process."""

from collections.abc import Iterator
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

from accord.capabilities import models
from accord.community.errors import CommunityError, bad_request

if TYPE_CHECKING:
    from PIL.Image import Image

_FORMATS: Final = ("PNG", "JPEG", "WEBP", "TIFF", "GIF", "BMP")
_MOST_PIXELS: Final = 40_000_000
_DOTS: Final = 200  # per inch
_POINTS: Final = 72  # per inch
_LONGEST: Final = 4000
_PDF_WITHIN: Final = 1024


def pictures(data: bytes, most: int) -> tuple[int, Iterator["Image"]]:
    """Return how many pages a file has, and its first ones, which are read one by one.

    Raises:
        CommunityError: It is no picture or PDF, or is damaged, locked or too large:
            `bad_request`; a library is missing: `not_implemented`.
    """
    if b"%PDF-" in data[:_PDF_WITHIN]:
        document = _open_pdf(data)
        return len(document), _pdf_pages(document, most)
    picture = _open_picture(data)
    return getattr(picture, "n_frames", 1), _frames(picture, most)


def _open_pdf(data: bytes) -> Any:
    pdfium: Any = models.library("pypdfium2", "media")
    try:
        return pdfium.PdfDocument(data)
    except pdfium.PdfiumError as error:
        raise bad_request(
            f"the PDF is damaged or locked ({error})", mend="save it anew, without a password"
        ) from error


def _pdf_pages(document: Any, most: int) -> Iterator["Image"]:
    for number in range(min(most, len(document))):
        page = document[number]
        scale = min(_DOTS / _POINTS, _LONGEST / max(1.0, *page.get_size()))
        yield page.render(scale=scale).to_pil()
        page.close()


def _open_picture(data: bytes) -> Any:
    images: Any = models.library("PIL.Image", "media")
    images.MAX_IMAGE_PIXELS = None  # its own limit is a warning first
    try:
        return images.open(BytesIO(data), formats=_FORMATS)
    except images.UnidentifiedImageError:
        raise bad_request(
            "unsupported media type", mend=f"give a PDF, or a picture: {', '.join(_FORMATS)}"
        ) from None


def _frames(picture: Any, most: int) -> Iterator["Image"]:
    operations: Any = models.library("PIL.ImageOps", "media")
    for number in range(min(most, getattr(picture, "n_frames", 1))):
        picture.seek(number)
        if picture.width * picture.height > _MOST_PIXELS:
            raise _too_large()
        yield operations.exif_transpose(picture).convert("RGB")


def _too_large() -> CommunityError:
    return bad_request(
        f"the picture has more than {_MOST_PIXELS} pixels", mend="save a smaller one"
    )
