"""WeCom's XML: one element `xml`, whose children are texts.

Pure. A document type is refused before anything in it is read, so that there are no entities but
the five of XML itself, and nothing is ever fetched. What is nested deeper is skipped.
"""

from typing import Any, Final
from xml.parsers import expat

from accord.relay.wire.members import bad

_ROOT: Final = "xml"
_DEEPEST: Final = 16
_MOST: Final = 500


def read_xml(raw: bytes) -> dict[str, str]:
    """The texts by the names of their elements.

    Raises:
        RelayError: It is not such a document in UTF-8.
    """
    reading = _Reading()
    parser = expat.ParserCreate("utf-8")
    parser.buffer_text = True
    parser.StartDoctypeDeclHandler = reading.doctype
    parser.StartElementHandler = reading.start
    parser.EndElementHandler = reading.end
    parser.CharacterDataHandler = reading.text
    try:
        # A text, whose encoding the document cannot choose; UTF-16 by any sign has zeros.
        text = raw.decode("utf-8")
        if "\0" in text:
            raise bad("the XML has zeros in it")
        parser.Parse(text, True)
    except (expat.ExpatError, UnicodeDecodeError):
        raise bad("the body is no XML in UTF-8") from None
    return reading.found


class _Reading:
    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self._path: list[str] = []
        self._parts: list[str] = []
        self._elements = 0

    def doctype(self, *_given: Any) -> None:
        raise bad("the XML has a document type, which is never sent by WeCom")

    def start(self, name: str, _attributes: dict[str, str]) -> None:
        self._elements += 1
        if self._elements > _MOST or len(self._path) >= _DEEPEST:
            raise bad("the XML has too many elements")
        if not self._path and name != _ROOT:
            raise bad("the XML is not a message of WeCom's")
        self._path.append(name)
        if len(self._path) == 2:
            self._parts.clear()

    def text(self, data: str) -> None:
        if len(self._path) == 2:
            self._parts.append(data)

    def end(self, name: str) -> None:
        if len(self._path) == 2:
            if name in self.found:
                raise bad("an element is given twice", where=name[:40])
            self.found[name] = "".join(self._parts)
        self._path.pop()
