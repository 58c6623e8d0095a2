"""Services and contracts of the user's own code, named on the command line."""

import importlib
import importlib.util
import inspect
import re
import sys
import sysconfig
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

import accord

if TYPE_CHECKING:
    from accord.fabric import Service

_MODULE: Final = re.compile(r"(?P<where>[A-Za-z_][\w.]*):(?P<name>[A-Za-z_]\w*)")
_FILE: Final = re.compile(r"(?P<where>.+\.py)(?::(?P<name>[A-Za-z_]\w*))?")
_INSTALLED: Final = (Path(accord.__file__).parent, Path(sysconfig.get_path("stdlib")))

TargetName = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="A file such as shop.py, or MODULE:NAME: a service, or a function that makes one.",
    ),
]


@dataclass(frozen=True)
class Target:
    """What was found under a name."""

    found: Any
    name: str
    file: Path


def import_target(target: str) -> Target:
    """Import what a target names; modules are found from the current folder on.

    Raises:
        FabricError: It cannot be imported, or does not say which of several is meant.
        typer.BadParameter: It is not a target.
    """
    from accord.fabric import FabricError

    named = _FILE.fullmatch(target) or _MODULE.fullmatch(target)
    if named is None:
        raise typer.BadParameter("expected MODULE:NAME, such as library:library, or a .py file")
    sys.path.insert(0, str(Path.cwd()))
    where = named["where"]
    try:
        module = (
            _import_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
        )
    except Exception as error:
        place = _place(error)
        raise FabricError(
            f"the module cannot be imported ({type(error).__name__}: {error})",
            where=place or where,
            mend=None
            if place
            else "run this from the folder that holds it, and check that Python can import it",
        ) from error
    name = named["name"] or _only_service(module, where)
    found = getattr(module, name, None)
    if found is None:
        raise FabricError(f"the module has no {name!r}", where=where, mend="name another")
    return Target(found, name, Path(module.__file__ or where))


def _place(error: Exception) -> str | None:
    """The last line of the user's own code that an error passed, such as `shop.py:12`."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return _shown(Path(error.filename), error.lineno)
    frames = [
        (Path(frame.filename), frame.lineno)
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.lineno and not frame.filename.startswith("<")
    ]
    own = [(file, line) for file, line in frames if not _is_installed(file)]
    return _shown(*own[-1]) if own else None


def _is_installed(file: Path) -> bool:
    """Whether a file is Accord's, Python's, or a package's."""
    return "site-packages" in file.parts or any(file.is_relative_to(each) for each in _INSTALLED)


def _shown(file: Path, line: int) -> str:
    near = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    return f"{near}:{line}"


def _import_file(file: Path) -> ModuleType:
    sys.path.insert(0, str(file.resolve().parent))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no module")
    module = importlib.util.module_from_spec(spec)
    # Annotations are resolved, and pickles found, by the module's name.
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


def _only_service(module: ModuleType, where: str) -> str:
    from accord.fabric import FabricError, Service, TypedService

    found = [name for name, it in vars(module).items() if isinstance(it, TypedService | Service)]
    if len(found) == 1:
        return found[0]
    raise FabricError(
        f"the module has {len(found)} services and not one",
        where=where,
        mend=f"name what is meant: {where}:{found[0] if found else 'NAME'}",
    )


def require_service(found: Any) -> None:
    """Check that this is a service or a factory of one; raises FabricError."""
    from accord.fabric import FabricError, Service

    if isinstance(found, Service):
        return
    try:
        inspect.signature(found).bind(key=None, authority=None, store=None)
    except (TypeError, ValueError):
        raise FabricError(
            "this makes no service: it cannot be called with key, authority and store",
            mend="give it these three parameters, or name a Service",
        ) from None


def make_service(found: Any, **given: Any) -> "Service":
    """The service that a factory makes; raises FabricError if it makes something else."""
    from accord.fabric import FabricError, Service

    service = found(**given)
    if not isinstance(service, Service):
        raise FabricError(f"this made a {type(service).__name__} and no Service")
    return service


def manifest_of(found: Any) -> dict[str, Any]:
    """The manifest of a service, a contract, or a function that returns one.

    Raises:
        FabricError: It has none, or a handler asks for what is not declared.
    """
    from accord.contracts.authoring import Contract
    from accord.fabric import FabricError, Service, TypedService
    from accord.kernel.signing import SigningKey

    if isinstance(found, TypedService):
        # Made once, for an authority that is never asked: that checks every handler.
        made = found(key=SigningKey.generate(), authority="http://127.0.0.1:1")
        return made.terms.manifest
    if isinstance(found, Service):
        return found.terms.manifest
    made_contract: Contract | None = None
    if isinstance(found, Contract):
        made_contract = found
    elif inspect.isfunction(found) and not inspect.signature(found).parameters:
        returned = found()
        made_contract = returned if isinstance(returned, Contract) else None
    if made_contract is None:
        raise FabricError(
            f"a {type(found).__name__} has no contract",
            mend="name a TypedService, a Service, a Contract, or a function that returns one",
        )
    return made_contract.manifest()
