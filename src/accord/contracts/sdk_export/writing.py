"""Writes a generated package to a folder; the one place of the contracts that touches files."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accord.contracts.errors import ContractError
from accord.contracts.sdk_export.rendering import package_name, render_sdk


def sdk(contract: Mapping[str, Any], out: Path, *, force: bool = False) -> Path:
    """Write the package of a contract below a folder, whole or not at all, and return its path.

    Args:
        contract: A valid contract.
        out: The folder in which the package is made.
        force: Whether the files of an earlier package may be replaced.

    Raises:
        ContractError: The contract is not valid, the package is there already, or the folder
            cannot be written.
    """
    files = render_sdk(contract)
    package = out / package_name(contract)
    if package.exists() and not force:
        raise ContractError(
            "it is there already", where=str(package), mend="choose another folder, or use --force"
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".accord-", dir=out) as made:
            draft = Path(made)
            (draft / package.name).mkdir()
            for path, content in files.items():
                (draft / path).write_text(content, encoding="utf-8")
            if package.exists():
                for path in files:
                    (draft / path).replace(out / path)
            else:
                (draft / package.name).rename(package)
    except OSError as error:
        raise ContractError(
            f"the package cannot be written here ({error.strerror})",
            where=str(package),
            mend="choose a folder that can be written",
        ) from error
    return package
