"""The page of the client library: every public name of `accord.fabric`, from its docstrings."""

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from docs.making.markdown import code, fenced, join, meaning

import accord.fabric

_PACKAGES: Final = re.compile(
    r"\b(?:accord|collections|typing|typing_extensions)(?:\.\w+)*\.(?=\w)"
)
_OBJECT: Final = re.compile(r"<[^<>]+ at 0x[0-9a-f]+>|<factory>")


def render() -> str:
    """Every name with its docstring, and the public methods of classes."""
    return join(
        _entry(name, getattr(accord.fabric, name)) for name in sorted(accord.fabric.__all__)
    )


def _entry(name: str, it: Any) -> str:
    parts = [f"## {name}"]
    if inspect.isclass(it):
        parts += [fenced(f"class {name}{_signature(it)}", "python"), _said(it, name)]
        parts += [_method(name, method, of) for method, of in _methods(it)]
    elif callable(it):
        parts += [fenced(f"def {name}{_signature(it)}", "python"), _said(it, name)]
    else:
        parts.append(code(repr(it)))
    return join(parts)


def _methods(kind: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties, also inherited ones of ours, in the order of the code."""
    seen: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("accord.fabric"):
            seen |= {name: it for name, it in vars(base).items() if not name.startswith("_")}
    for name, it in seen.items():
        if isinstance(it, property | classmethod | staticmethod) or inspect.isfunction(it):
            yield name, it


def _method(owner: str, name: str, it: Any) -> str:
    if isinstance(it, property):
        head, told = name, it.fget
    else:
        told = it.__func__ if isinstance(it, classmethod | staticmethod) else it
        wait = "async " if inspect.iscoroutinefunction(told) else ""
        head = f"{wait}def {name}{_signature(told)}"
    return join([f"### {owner}.{name}", fenced(head, "python"), _said(told, f"{owner}.{name}")])


def _signature(it: Callable[..., Any]) -> str:
    try:
        written = str(inspect.signature(it))
    except ValueError:
        return ""
    return _OBJECT.sub("...", _PACKAGES.sub("", written)).replace("'", "").replace('"', "")


def _said(it: Any, of: str) -> str:
    """A docstring; its indented blocks are code."""
    text = inspect.cleandoc(it.__doc__ or "")
    meaning(text, f"accord.fabric.{of}")
    # A dataclass without a docstring gets its signature as one.
    return "" if text.startswith(f"{of}(") else text
