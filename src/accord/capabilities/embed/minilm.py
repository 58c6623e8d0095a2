"""MiniLM in this process: texts to vectors by tokenizers and onnxruntime, without torch.

Owns the session and the tokenizer. It computes in whichever thread calls it, one batch at a time
as it is told; who waits for what, and what is remembered, is `batching`'s.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from accord.capabilities import models
from accord.capabilities.embed import bert

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_TOKENS_AT_ONCE: Final = 512  # more does not fit into the caches of a processor
_TEXTS_AT_ONCE: Final = 64
_FATAL: Final = 4


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts of about one length, padded to the longest.

    Attributes:
        places: Which of the given texts they are.
        ids: Their tokens.
        mask: Which tokens are not padding.
    """

    places: list[int]
    ids: "NDArray[np.int32]"
    mask: "NDArray[np.int32]"


class MiniLM:
    """The model, loaded.

    Args:
        folder: Its weights; see `models.embedding_model`.
        threads: How many threads compute.

    Raises:
        CommunityError: A library or the weights cannot be used: `not_implemented`.
    """

    def __init__(self, folder: Path, *, threads: int) -> None:
        runtime = models.library("onnxruntime")
        tokenizers = models.library("tokenizers")
        self._numpy: Any = models.library("numpy")
        shape = bert.Shape.read(folder / "config.json")
        self.model = models.MINILM
        self.dimensions = shape.hidden
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = _FATAL
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(folder)
        )
        graph = bert.build(folder, shape)
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
            self._session = runtime.InferenceSession(
                graph, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # neither library has a type of its own for this
            raise bert.unusable(folder, f"it cannot be loaded ({type(error).__name__})") from error
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(min(_longest(folder), shape.longest))

    def vectors(self, texts: Sequence[str]) -> "NDArray[np.float32]":
        """One row for each text, as long as the model makes it."""
        rows: NDArray[np.float32] = self._numpy.empty(
            (len(texts), self.dimensions), self._numpy.float32
        )
        for batch in self.batches(texts):
            rows[batch.places] = self.run(batch)
        return rows

    def batches(self, texts: Sequence[str]) -> Iterator[Batch]:
        """Texts put together by length, so that little is computed for padding."""
        numpy = self._numpy
        tokens = [each.ids for each in self._tokenizer.encode_batch(list(texts))]
        order = sorted(range(len(tokens)), key=lambda place: len(tokens[place]))
        while order:
            places = _fitting(order, tokens)
            del order[: len(places)]
            longest = len(tokens[places[-1]])
            ids = numpy.zeros((len(places), longest), numpy.int32)
            mask = numpy.zeros_like(ids)
            for row, place in enumerate(places):
                length = len(tokens[place])
                ids[row, :length] = tokens[place]
                mask[row, :length] = 1
            yield Batch(places, ids, mask)

    def run(self, batch: Batch) -> "NDArray[np.float32]":
        """The vectors of one batch."""
        segments = self._numpy.zeros_like(batch.ids)
        given = {"ids": batch.ids, "segments": segments, "mask": batch.mask}
        (vectors,) = self._session.run(None, given)
        return vectors  # type: ignore[no-any-return]


def _fitting(order: list[int], tokens: list[list[int]]) -> list[int]:
    """The first texts that make one batch together; the longest comes last."""
    count = 1
    for place in order[1:_TEXTS_AT_ONCE]:
        if (count + 1) * len(tokens[place]) > _TOKENS_AT_ONCE:
            break
        count += 1
    return order[:count]


def _longest(folder: Path) -> int:
    """How many tokens of a text count, as the model was made; the rest is cut off."""
    try:
        return int(
            json.loads((folder / "sentence_bert_config.json").read_bytes())["max_seq_length"]
        )
    except (OSError, ValueError, KeyError, TypeError):
        return 256
