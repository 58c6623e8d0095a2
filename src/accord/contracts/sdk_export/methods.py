"""The methods of generated classes: how one is written, and what the surfaces are called."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from accord.contracts.naming import Names, snake_name
from accord.contracts.sdk_export.layout import docstring

INDENT: Final = " " * 8


@dataclass(frozen=True, slots=True)
class Interface:
    """A contract as the writers of code see it.

    Attributes:
        contract: The normalised manifest.
        types: The name of the type of each schema.
        methods: The last part of the method names of each surface, by section and name.
    """

    contract: Mapping[str, Any]
    types: Mapping[str, str]
    methods: Mapping[str, Mapping[str, str]]

    def entries(self, section: str) -> list[tuple[str, str, Mapping[str, Any]]]:
        """The entries of a section in order: logical name, method name, entry."""
        entries = self.contract.get(section, {})
        return [(name, self.methods[section][name], entries[name]) for name in sorted(entries)]

    def type_of(self, reference: Mapping[str, str] | None) -> str:
        """The type that a reference to a schema stands for."""
        return "None" if reference is None else f"types.{self.types[reference['schema']]}"


def method_names(contract: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """A name for each entry of each section, unique within the section."""
    sections = ("rpc", "operations", "events", "feeds", "jobs", "eventConsumers")
    return {
        section: Names().all((name, snake_name(name)) for name in contract.get(section, {}))
        for section in sections
    }


def signal_names(operation: Mapping[str, Any]) -> dict[str, str]:
    """A name for each signal of an operation, unique within it."""
    return Names().all((signal, snake_name(signal)) for signal in operation.get("signals", {}))


def method(
    head: str, parameters: Iterable[str], returns: Iterable[str], doc: str, body: str = ""
) -> str:
    """A method with one parameter to a line.

    Args:
        head: Everything up to the name, such as `async def call_user_find`.
        parameters: What comes after `self`.
        returns: The type that it returns; of more parts, the first with the others in brackets.
        doc: The docstring.
        body: The lines below it.
    """
    lines = "".join(f"{INDENT}{parameter},\n" for parameter in ("self", *parameters))
    kind, *arguments = returns
    if len(arguments) > 1:
        inner = "".join(f"{INDENT}{argument},\n" for argument in arguments)
        kind += f"[\n{inner}    ]"
    elif arguments:
        kind += f"[{arguments[0]}]"
    return f"\n    {head}(\n{lines}    ) -> {kind}:\n{docstring(doc, INDENT)}{body}"
