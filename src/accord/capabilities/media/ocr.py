"""Text in pictures, by the PP-OCR models that ship in the wheel `rapidocr`.

A first model marks where there is text, a second one reads each line. Lines are taken to be level;
a page in columns is read line by line across them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from accord.capabilities import models

if TYPE_CHECKING:
    from PIL.Image import Image

_STEP: Final = 32  # sides are multiples of it
_LONGEST: Final = 1600
_SHORTEST: Final = 320
_MEAN: Final = np.array([0.406, 0.456, 0.485], np.float32)  # blue, green, red
_SPREAD: Final = np.array([0.225, 0.224, 0.229], np.float32)
_MARKED: Final = 0.3
_CERTAIN: Final = 0.5
_GROWN: Final = 1.6
_LEAST_SIDE: Final = 3
_LINE_HEIGHT: Final = 48
_WIDEST: Final = 3200
_AT_ONCE: Final = 8
_READ: Final = 0.5


@dataclass(frozen=True, slots=True)
class TextLine:
    """A line of text: where it is in the picture, and how certain the model is."""

    text: str
    certainty: float
    left: int
    top: int
    right: int
    bottom: int


class TextReader:
    """Reads pictures; not for several threads at once."""

    def __init__(self, folder: Path, *, threads: int) -> None:
        runtime: Any = models.library("onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        self._finder, self._reader = (
            runtime.InferenceSession(str(each), options, providers=["CPUExecutionProvider"])
            for each in models.ocr_models(folder)
        )
        known = self._reader.get_modelmeta().custom_metadata_map["character"].split("\n")
        self._letters = ["", *known, " "]

    def read(self, picture: "Image") -> list[TextLine]:
        """Return the lines of a picture, from the top."""
        pixels = np.asarray(picture.convert("RGB"))
        boxes = reading_order(self._find(picture))
        lines = []
        for start in range(0, len(boxes), _AT_ONCE):
            batch = boxes[start : start + _AT_ONCE]
            told = self._letters_of([_line_picture(pixels, box) for box in batch])
            lines += [
                TextLine(text.strip(), certainty, *box)
                for box, (text, certainty) in zip(batch, told, strict=True)
                if text.strip() and certainty >= _READ
            ]
        return lines

    def _find(self, picture: "Image") -> list["Box"]:
        width, height = picture.size
        scale = min(1.0, _LONGEST / max(width, height))
        if min(width, height) * scale < _SHORTEST:
            scale = min(_SHORTEST / min(width, height), _LONGEST / max(width, height))
        sides = [max(_STEP, round(side * scale / _STEP) * _STEP) for side in (width, height)]
        small = np.asarray(picture.convert("RGB").resize((sides[0], sides[1])), np.float32)
        given = ((small[:, :, ::-1] / 255 - _MEAN) / _SPREAD).transpose(2, 0, 1)[None]
        marks: NDArray[np.float32] = self._finder.run(None, {"x": given})[0][0, 0]
        across, down = width / sides[0], height / sides[1]
        found = []
        for left, top, right, bottom in text_areas(marks):
            found.append(
                (
                    max(0, int(left * across)),
                    max(0, int(top * down)),
                    min(width, int(np.ceil(right * across))),
                    min(height, int(np.ceil(bottom * down))),
                )
            )
        return found

    def _letters_of(self, lines: Sequence[NDArray[np.float32]]) -> list[tuple[str, float]]:
        widest = max(line.shape[2] for line in lines)
        given = np.zeros((len(lines), 3, _LINE_HEIGHT, widest), np.float32)
        for place, line in enumerate(lines):
            given[place, :, :, : line.shape[2]] = line
        told: NDArray[np.float32] = self._reader.run(None, {"x": given})[0]
        return [self._decode(each) for each in told]

    def _decode(self, steps: NDArray[np.float32]) -> tuple[str, float]:
        """The most likely letter of each step, without repetitions and blanks."""
        best = steps.argmax(axis=1)
        new = np.append(True, best[1:] != best[:-1]) & (best != 0)
        if not new.any():
            return "", 0.0
        text = "".join(self._letters[each] for each in best[new])
        return text, float(steps.max(axis=1)[new].mean())


Box = tuple[int, int, int, int]
"""Left, top, right and bottom."""


def text_areas(marks: NDArray[np.float32]) -> Iterator[tuple[float, float, float, float]]:
    """Yield the areas that are marked as text, grown to the whole height of the letters."""
    for left, top, right, bottom in _joined_runs(marks > _MARKED):
        width, height = right - left, bottom - top
        if min(width, height) < _LEAST_SIDE:
            continue
        inside = marks[top:bottom, left:right]
        if inside[inside > _MARKED].mean() < _CERTAIN:
            continue
        grown = width * height * _GROWN / (2 * (width + height))
        yield left - grown, top - grown, right + grown, bottom + grown


def _joined_runs(marked: NDArray[np.bool_]) -> list[Box]:
    """The boxes around connected areas, from the runs of each row."""
    boxes: list[list[int]] = []
    parents: list[int] = []

    def root(area: int) -> int:
        while parents[area] != area:
            parents[area] = parents[parents[area]]
            area = parents[area]
        return area

    above: list[tuple[int, int, int]] = []
    edges = np.diff(np.pad(marked.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    before = -1
    for row in np.flatnonzero(marked.any(axis=1)).tolist():
        here: list[tuple[int, int, int]] = []
        place = 0
        above, before = above if row == before + 1 else [], row
        starts, ends = np.flatnonzero(edges[row] == 1), np.flatnonzero(edges[row] == -1)
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            while place < len(above) and above[place][1] < start:
                place += 1
            touched, seen = None, place
            while seen < len(above) and above[seen][0] <= end:
                other = root(above[seen][2])
                if touched is None:
                    touched = other
                elif other != touched:
                    parents[other] = touched
                    boxes[touched] = _around(boxes[touched], boxes[other])
                seen += 1
            if touched is None:
                touched = len(boxes)
                parents.append(touched)
                boxes.append([start, row, end, row + 1])
            boxes[touched] = _around(boxes[touched], [start, row, end, row + 1])
            here.append((start, end, touched))
        above = here
    return [
        (box[0], box[1], box[2], box[3]) for area, box in enumerate(boxes) if parents[area] == area
    ]


def _around(one: list[int], other: list[int]) -> list[int]:
    return [
        min(one[0], other[0]),
        min(one[1], other[1]),
        max(one[2], other[2]),
        max(one[3], other[3]),
    ]


def reading_order(boxes: Sequence[Box]) -> list[Box]:
    """Boxes from the top, those of one line from the left."""
    ordered: list[Box] = []
    line: list[Box] = []
    for box in sorted(boxes, key=lambda each: each[1] + each[3]):
        # It begins a line if its middle is below the lowest quarter of the one before.
        if line and (box[1] + box[3]) / 2 > (line[0][1] + 3 * line[0][3]) / 4:
            ordered += sorted(line)
            line = []
        line.append(box)
    return ordered + sorted(line)


def _line_picture(pixels: NDArray[np.uint8], box: Box) -> NDArray[np.float32]:
    images: Any = models.library("PIL.Image")
    left, top, right, bottom = box
    cut = images.fromarray(pixels[top:bottom, left:right])
    width = max(8, min(_WIDEST, round(_LINE_HEIGHT * (right - left) / (bottom - top))))
    scaled = np.asarray(cut.resize((width, _LINE_HEIGHT)), np.float32)
    given: NDArray[np.float32] = (scaled[:, :, ::-1] / 127.5 - 1).transpose(2, 0, 1)
    return given


def as_text(lines: Sequence[TextLine]) -> str:
    """The text of a page: a line for each line, and a blank one where there is a gap."""
    parts: list[str] = []
    before: TextLine | None = None
    for line in lines:
        if before is not None:
            height = max(before.bottom - before.top, line.bottom - line.top)
            if line.top < before.bottom - (before.bottom - before.top) / 2 and (
                line.left >= before.right - height
            ):
                parts.append(" ")
            else:
                parts.append("\n\n" if line.top - before.bottom > 0.8 * height else "\n")
        parts.append(line.text)
        before = line
    return "".join(parts)
