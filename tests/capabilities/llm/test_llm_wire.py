"""What servers send, whatever it is."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from accord.capabilities.llm import wire
from accord.capabilities.llm.pieces import Ended, Read, StopReason, Text, ToolCallDelta

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
    reader = wire.Reader()
    for chunk in chunks:
        for piece in reader.hear(chunk):
            assert isinstance(piece, Read | Text | ToolCallDelta)
    assert isinstance(reader.ended(), Ended)


def hear(*chunks: Any) -> list[Any]:
    reader = wire.Reader()
    return [piece for chunk in chunks for piece in reader.hear(chunk)] + [reader.ended()]


def test_tokens_are_counted_by_the_server_or_by_us() -> None:
    def chunk(text: str, **more: Any) -> Any:
        return {"choices": [{"delta": {"content": text}}], **more}

    assert hear(chunk("a"), chunk("b"))[-1] == Ended(StopReason.END, None, 2)
    usage = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}}
    assert hear(chunk("a"), usage)[-1] == Ended(StopReason.END, 7, 5)
    assert hear({"choices": [{"finish_reason": "length"}]})[-1].reason is StopReason.MAX_TOKENS
    timed = chunk("a", timings={"predicted_n": 3}, prompt_progress={"total": 9})
    assert hear(timed) == [Read(9), Text("a", None, 3), Ended(StopReason.END, 9, 3)]


def test_a_probability_is_told_only_when_it_is_one() -> None:
    def chunk(*logprobs: Any) -> Any:
        content = [{"logprob": each} for each in logprobs]
        return {"choices": [{"delta": {"content": "a"}, "logprobs": {"content": content}}]}

    assert hear(chunk(-0.5, -0.25))[0].logprob == -0.75
    assert hear(chunk(float("-inf")))[0].logprob is None
    assert hear(chunk(-0.5, "x"))[0].logprob is None
    legacy = {"choices": [{"text": "a", "logprobs": {"token_logprobs": [-0.5]}}]}
    assert hear(legacy)[0].logprob == -0.5


def test_a_tool_call_keeps_the_name_that_came_first() -> None:
    def chunk(**call: Any) -> Any:
        return {"choices": [{"delta": {"tool_calls": [call]}}]}

    pieces = hear(
        chunk(index=0, id="c1", function={"name": "f", "arguments": ""}),
        chunk(index=0, function={"arguments": "{}"}),
        chunk(index=1, function={"name": "g", "arguments": "[]"}),
    )
    assert pieces[:3] == [
        ToolCallDelta("c1", "f", ""),
        ToolCallDelta("c1", "f", "{}"),
        ToolCallDelta("call_1", "g", "[]"),
    ]
