"""A secret: given in the settings, or in a file that they name."""

from pathlib import Path

from pydantic import SecretStr

from accord.relay.errors import Code, RelayError

_MOST = 64 * 1024


def secret(value: SecretStr, file: str, where: str) -> SecretStr:
    """The secret that the settings give.

    Args:
        value: The secret itself; empty where it is in a file.
        file: The file; empty where the secret is given.
        where: The setting, for an error.

    Raises:
        RelayError: There is none, there are two, or the file cannot be read.
    """
    if value.get_secret_value():
        if not file:
            return value
        raise _bad("the secret is given twice", where, f"keep one of {where} and {where}_file")
    if not file:
        raise _bad("a secret is missing", where, f"set {where}, or {where}_file to a file of it")
    return read(file, f"{where}_file")


def read(file: str, where: str) -> SecretStr:
    """The secret that a file holds, without the space around it.

    Args:
        file: The file.
        where: The setting that names it, for an error.

    Raises:
        RelayError: The file cannot be read, or holds nothing that could be a secret.
    """
    try:
        with Path(file).expanduser().open("rb") as opened:
            text = opened.read(_MOST).decode("utf-8").strip()
    except OSError as error:
        raise _bad(
            f"a secret's file cannot be read ({error.strerror})", where, "correct it"
        ) from None
    except UnicodeDecodeError:
        raise _bad("a secret's file is no text", where, "correct it") from None
    if not text:
        raise _bad("a secret's file is empty", where, "write the secret into it")
    return SecretStr(text)


def _bad(what: str, where: str, mend: str) -> RelayError:
    return RelayError(Code.BAD_REQUEST, what, where=where, mend=mend)
