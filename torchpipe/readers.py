"""The bases of a reader of your own: a node that yields the records of files, and resumes at each of them.

A node derives from :class:`ContentReader` (files that may be compressed), :class:`FileReader` (other files) or
:class:`StreamReader` (files that are open already). Its ``records(item)`` returns :class:`Records`, one open file and
the position in it; :class:`ContentRecords` are read one after the other, and their position is in bytes.
"""

from torchpipe.formats.records import ContentRecords, Records
from torchpipe.iter._shared.reading import ContentReader, FileReader, StreamReader

__all__ = ["ContentReader", "ContentRecords", "FileReader", "Records", "StreamReader"]
