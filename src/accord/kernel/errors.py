"""The root of every error that Accord raises on purpose.

Each plane derives one error type from it. An `AccordError` is meant for a person: it says what
is wrong, where, and how to mend it, and the command line prints it as one sentence.
"""


class AccordError(Exception):
    """Something is wrong that a person can understand and, mostly, mend.

    Args:
        what: A clause without a final full stop, such as "the port 7070 is in use".
        where: The file, setting, pointer or position concerned, if there is one.
        mend: A clause that tells what to do about it.
    """

    def __init__(self, what: str, *, where: str | None = None, mend: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.mend = mend

    def __str__(self) -> str:
        prefix = f"{self.where}: " if self.where else ""
        suffix = f"; {self.mend}" if self.mend else ""
        return f"{prefix}{self.what}{suffix}"
