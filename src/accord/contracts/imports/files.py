"""Which kind of description a file holds."""

from typing import Any, Final

from accord.contracts.errors import ContractError
from accord.contracts.imports.asyncapi import read_asyncapi
from accord.contracts.imports.document import Imported
from accord.contracts.imports.openapi import read_openapi
from accord.contracts.imports.protobuf import read_protobuf
from accord.kernel import canonical

_MOST: Final = 16 << 20


def read_document(data: bytes, identity: str) -> Imported:
    """The contract of an OpenAPI or AsyncAPI document (JSON, YAML), or of protobuf descriptors.

    Raises ContractError.
    """
    if len(data) > _MOST:
        raise ContractError(f"the document has more than {_MOST} bytes")
    # Field 1 of a FileDescriptorSet is a file, whose field 1 is its name.
    if data.startswith(b"\n") and b".proto" in data[:400]:
        return read_protobuf(data, identity)
    document = _parse(data)
    if isinstance(document, dict) and "asyncapi" in document:
        return read_asyncapi(document, identity)
    if isinstance(document, dict) and ("openapi" in document or "swagger" in document):
        return read_openapi(document, identity)
    raise ContractError(
        "this is neither an OpenAPI nor an AsyncAPI document, nor protobuf descriptors",
        mend="such documents begin with a member `openapi` or `asyncapi`",
    )


def _parse(data: bytes) -> Any:
    if data.lstrip()[:1] == b"{":
        try:
            return canonical.decode(data, max_bytes=_MOST)
        except canonical.CanonicalError as error:
            raise ContractError(f"the document is not JSON: {error}") from None
    try:
        import yaml
    except ImportError as error:
        raise ContractError("reading YAML needs pyyaml", mend="pip install pyyaml") from error
    try:
        # Aliases can make a small text a huge document.
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(data)):
            raise ContractError("aliases of YAML are not read", mend="write the document as JSON")
        return yaml.load(data, Loader=_loader(yaml))  # noqa: S506 - a kind of SafeLoader
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        first = str(error).partition("\n")[0]
        raise ContractError(f"the document is neither JSON nor YAML: {first}") from None


def _loader(yaml: Any) -> Any:
    """Values as JSON has them: dates stay texts, keys are texts."""

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[str, Any]:
            read = super().construct_mapping(node, deep)
            return {_key(key): value for key, value in read.items()}

    Loader.yaml_implicit_resolvers = {
        letter: [each for each in listed if each[0] != "tag:yaml.org,2002:timestamp"]
        for letter, listed in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    return Loader


def _key(key: Any) -> str:
    if isinstance(key, bool):
        return "true" if key else "false"
    return key if isinstance(key, str) else str(key)
