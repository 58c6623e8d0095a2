"""What servers send, whatever it is."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from accord.capabilities.llm import GenerationEnd, PromptRead, StopReason, TextPiece, ToolCallDelta
from accord.capabilities.llm.rules import generation

VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "delta",
                    "content",
                    "text",
                    "tool_calls",
                    "index",
                    "id",
                    "function",
                    "name",
                    "arguments",
                    "usage",
                    "prompt_tokens",
                    "completion_tokens",
                    "logprobs",
                    "logprob",
                    "timings",
                    "predicted_n",
                    "prompt_progress",
                    "total",
                    "finish_reason",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@given(st.lists(VALUES, max_size=4))
def test_no_chunk_breaks_the_reader(chunks: list[Any]) -> None:
    reader = generation.AnswerReader()
    for chunk in chunks:
        for piece in reader.read(chunk):
            assert isinstance(piece, PromptRead | TextPiece | ToolCallDelta)
    assert isinstance(reader.ended(), GenerationEnd)


def read(*chunks: Any) -> list[Any]:
    reader = generation.AnswerReader()
    return [piece for chunk in chunks for piece in reader.read(chunk)] + [reader.ended()]


def test_tokens_are_counted_by_the_server_or_by_us() -> None:
    def chunk(text: str, **more: Any) -> Any:
        return {"choices": [{"delta": {"content": text}}], **more}

    assert read(chunk("a"), chunk("b"))[-1] == GenerationEnd(StopReason.END, None, 2)
    usage = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}}
    assert read(chunk("a"), usage)[-1] == GenerationEnd(StopReason.END, 7, 5)
    assert read({"choices": [{"finish_reason": "length"}]})[-1].reason is StopReason.MAX_TOKENS
    timed = chunk("a", timings={"predicted_n": 3}, prompt_progress={"total": 9})
    assert read(timed) == [
        PromptRead(9),
        TextPiece("a", None, 3),
        GenerationEnd(StopReason.END, 9, 3),
    ]


def test_a_probability_is_told_only_when_it_is_one() -> None:
    def chunk(*logprobs: Any) -> Any:
        content = [{"logprob": each} for each in logprobs]
        return {"choices": [{"delta": {"content": "a"}, "logprobs": {"content": content}}]}

    assert read(chunk(-0.5, -0.25))[0].logprob == -0.75
    assert read(chunk(float("-inf")))[0].logprob is None
    assert read(chunk(-0.5, "x"))[0].logprob is None
    legacy = {"choices": [{"text": "a", "logprobs": {"token_logprobs": [-0.5]}}]}
    assert read(legacy)[0].logprob == -0.5


def test_a_tool_call_keeps_the_name_that_came_first() -> None:
    def chunk(**call: Any) -> Any:
        return {"choices": [{"delta": {"tool_calls": [call]}}]}

    pieces = read(
        chunk(index=0, id="c1", function={"name": "f", "arguments": ""}),
        chunk(index=0, function={"arguments": "{}"}),
        chunk(index=1, function={"name": "g", "arguments": "[]"}),
    )
    assert pieces[:3] == [
        ToolCallDelta("c1", "f", ""),
        ToolCallDelta("c1", "f", "{}"),
        ToolCallDelta("call_1", "g", "[]"),
    ]
