"""The page of the client library, from docstrings: what it exports, and what comes with it."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, Final, is_typeddict

from docs.making.markdown import code, fenced, join, meaning

import accord.fabric
from accord.contracts import authoring
from accord.fabric import sdk
from accord.kernel import signing

_PACKAGES: Final = re.compile(
    r"\b(?:accord|collections|typing|typing_extensions)(?:\.\w+)*\.(?=\w)"
)
_SPELLINGS: Final = (
    (re.compile(r"ForwardRef\('([^']*)'(?:, [^()]*)?\)"), r"\1"),
    (_PACKAGES, ""),
    (re.compile(r"\*<class '?(\w+)'?>"), r"Unpack[\1]"),
    (re.compile(r"<[^<>]+ at 0x[0-9a-f]+>|<factory>"), "..."),
    (re.compile(r"~(?=\w)"), ""),
)

MODULES: Final[Mapping[ModuleType, tuple[str, Sequence[str]]]] = {
    accord.fabric: ("The library itself.", accord.fabric.__all__),
    authoring: (
        "Contracts, written in Python: what `service.contract` is, and the settings of its parts.",
        (
            *("Contract", "Docs", "SurfaceSettings", "Transfer", "JobSettings", "KeyConcurrency"),
            *("Queue", "ConsumerSettings", "KvSettings", "StoreSettings", "schema_of"),
        ),
    ),
    signing: ("The key of an instance.", ("SigningKey", "SigningError")),
    sdk: (
        "What generated Python packages stand on.",
        ("transport", "host", "Transport", "Host", "OperationRun", "Context"),
    ),
}
"""The modules of the page: what each is for, and its names."""


def render() -> str:
    """Every name with its docstring, and the public methods of classes, module by module."""
    return join(
        join([f"## {module.__name__}", told, *_entries(module, names)])
        for module, (told, names) in MODULES.items()
    )


def _entries(module: ModuleType, names: Sequence[str]) -> Iterator[str]:
    for name in sorted(names):
        yield _entry(name, getattr(module, name))


def _entry(name: str, it: Any) -> str:
    parts = [f"### {name}"]
    if is_typeddict(it):
        parts += [fenced(f"class {name}(TypedDict):\n{_keys(it)}", "python"), _said(it, name)]
    elif inspect.isclass(it):
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
        if base.__module__.startswith("accord."):
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
    return join([f"#### {owner}.{name}", fenced(head, "python"), _said(told, f"{owner}.{name}")])


def _signature(it: Callable[..., Any]) -> str:
    try:
        written = str(inspect.signature(it))
    except ValueError:
        return ""
    return _plain(written)


def _keys(kind: Any) -> str:
    """The members of a TypedDict."""
    return "\n".join(
        f"    {name}: {_plain(inspect.formatannotation(of))}"
        for name, of in kind.__annotations__.items()
    )


def _plain(annotation: str) -> str:
    """An annotation as one would write it; what is quoted stays so in a Literal alone."""
    found = annotation
    for pattern, instead in _SPELLINGS:
        found = pattern.sub(instead, found)
    parts = re.split(r"(Literal\[[^\]]*\])", found)
    parts[::2] = [part.replace("'", "").replace('"', "") for part in parts[::2]]
    parts[1::2] = [part.replace("'", '"') for part in parts[1::2]]
    return "".join(parts)


def _said(it: Any, of: str) -> str:
    """A docstring; its indented blocks are code."""
    text = inspect.cleandoc(it.__doc__ or "")
    meaning(text, of)
    # A dataclass without a docstring gets its signature as one.
    return "" if text.startswith(f"{of}(") else text
