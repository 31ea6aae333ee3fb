"""Text out of bytes. Runs wherever its nodes run."""

from __future__ import annotations

import codecs
from typing import Any, NamedTuple

from torchpipe.iter._shared.pairs import naming_path

__all__ = ["Decoding"]


class Decoding(NamedTuple):
    """How bytes become text."""

    encoding: str
    errors: str

    @staticmethod
    def checked(encoding: str, errors: str) -> Decoding:
        """Raises: LookupError for an encoding, or a way to treat errors, that Python does not have."""
        for name, known, value in (("encoding", codecs.lookup, encoding), ("errors", codecs.lookup_error, errors)):
            try:
                known(value)
            except (LookupError, TypeError, ValueError) as error:
                what = "an encoding" if name == "encoding" else "a way to treat errors, such as 'strict' or 'ignore',"
                raise LookupError(f"{name} must be {what} that Python has, got {value!r}: {error}") from None
        return Decoding(encoding, errors)

    def text(self, line: Any, path: str) -> Any:
        """``line`` as text, if it is bytes."""
        if not isinstance(line, bytes | bytearray):
            return line
        with naming_path(path, "decoding"):
            return line.decode(self.encoding, self.errors)
