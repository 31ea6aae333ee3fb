"""Names of many files in one text: braces and globs.

The files that there were when a state was saved: a few numbers and names, by which another set of them is known.

Names are those below the folder that all have in common: data may lie elsewhere when a state is loaded.
"""

from __future__ import annotations

import glob
import hashlib
import itertools
import operator
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torchpipe.errors import StateMismatchError
from torchpipe.formats.storage.remote import as_url, file_system
from torchpipe.node.describe import names_below
from torchpipe.state.shared_list import SharedList, shared_list

__all__ = [
    "MOST_NAMES",
    "OTHER_CUTS",
    "check_listed",
    "described",
    "expand_braces",
    "expand_paths",
    "is_remote",
    "listed",
    "listed_files",
    "size_of",
]

MOST_NAMES = 1_000_000  # from one text; more are a slip of the pen, such as {0..999999999}
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)$")
_PADDED = re.compile(r"-?0\d")
_GLOB = re.compile(r"[*?\[]")


def is_remote(path: str) -> bool:
    """True for a URL, which fsspec opens."""
    return "://" in path or "::" in path


def expand_braces(text: str) -> list[str]:
    """The texts that ``text`` stands for: ``{a,b}`` for each of these, ``{008..012}`` for the numbers, zeros kept.

    As in a shell: braces nest, several multiply, the last ones change quickest; ``{}`` and ``{a}`` stay as they are.
    ``[{]`` and ``[}]`` stay too, by which globs mean the brace itself. Raises: ValueError for more than a million.
    """
    given = text.replace("[{]", "\0[").replace("[}]", "\0]")  # no name has a zero
    found = [
        one.replace("\0[", "[{]").replace("\0]", "[}]") for one in itertools.islice(_expanded(given), MOST_NAMES + 1)
    ]
    if len(found) > MOST_NAMES:
        raise ValueError(f"{text!r:.80} stands for more than {MOST_NAMES:,} names: is it meant to?")
    return found


def _expanded(text: str) -> Iterator[str]:
    pair = _first_pair(text)
    if pair is None:
        yield text
        return
    first, last = pair
    inner = text[first + 1 : last]
    for choice in _choices(inner):
        for middle in _expanded(choice):
            for rest in _expanded(text[last + 1 :]):
                yield text[:first] + middle + rest


def _choices(inner: str) -> Iterable[str]:
    if (match := _RANGE.match(inner)) is not None:
        first, last = int(match[1]), int(match[2])
        width = max(map(len, match.groups())) if any(_PADDED.match(one) for one in match.groups()) else 0
        step = 1 if last >= first else -1
        return (f"{number:0{width}}" for number in range(first, last + step, step))
    return _split(inner)


def _first_pair(text: str) -> tuple[int, int] | None:
    """The positions at which the first braces that stand for something open and close."""
    for first in (at for at, letter in enumerate(text) if letter == "{"):
        depth = 0
        for at in range(first, len(text)):
            depth += (text[at] == "{") - (text[at] == "}")
            if not depth:
                inner = text[first + 1 : at]
                if len(_split(inner)) > 1 or _RANGE.match(inner):
                    return first, at
                break
    return None


def _split(inner: str) -> list[str]:
    """At its commas, but for those within braces."""
    parts, depth = [""], 0
    for letter in inner:
        depth += (letter == "{") - (letter == "}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def expand_paths(what: str, paths: Any, storage_options: Mapping[str, Any] | None = None) -> Sequence[str]:
    """The files that ``paths`` names: one path or several, in which braces and globs may stand, URLs too.

    What exists under the very name is that file, with braces expanded or not. Globs give sorted names, and ``**`` goes
    down. Those of a shared list are one. ``what`` is who asks, for errors; ``storage_options`` are fsspec's.

    Raises: TypeError for other paths; FileNotFoundError for a local file that is missing and a glob that finds nothing;
    ValueError without any path, and for a file that two different texts name, or that has two names here: spelled in
    two ways, or through links.
    """
    given: Iterable[Any] = [paths] if isinstance(paths, str | os.PathLike) else paths
    if not isinstance(given, Iterable) or isinstance(given, bytes | dict | set | frozenset):
        raise TypeError(f"{what} needs paths, got {paths!r:.80} of type {type(paths).__name__}")
    found: dict[str, Any] = {}  # by which of the given paths
    files: dict[Any, str] = {}  # the first name of each local file
    advice = "Give paths that do not overlap (to read a file twice, name it twice in the same way)"
    every: list[str] = []
    fresh: list[Any] = []  # file systems whose listings are of this call
    for path in given:
        for one in _found(what, path, storage_options, fresh):
            by = found.setdefault(one, path)
            if by is not path and by != path:
                raise ValueError(
                    f"{what} would read {one!r:.200} twice: {os.fspath(by)!r:.100} and {os.fspath(path)!r:.100} both "
                    f"name it. {advice}"
                )
            first = files.setdefault(_file_of(one), one) if not is_remote(one) else one
            if first != one and os.path.realpath(first) == os.path.realpath(one):  # else hard links: files of their own
                raise ValueError(
                    f"{what} would read {os.path.realpath(one)!r:.200} twice: {first!r:.100} and {one!r:.100} are one "
                    f"file. {advice}"
                )
            every.append(one)
    if not every:
        raise ValueError(f"{what} needs at least one path, got none")
    if isinstance(paths, SharedList):
        return paths if len(every) == len(paths) and all(map(operator.eq, every, paths)) else shared_list(every)
    return tuple(every)


def _file_of(name: str) -> Any:
    """An identity that tells a local file from others, whatever its name; of a link that leads nowhere, its name."""
    try:
        found = os.stat(name)
    except OSError:
        return name
    return found.st_dev, found.st_ino


def _found(what: str, path: Any, storage_options: Mapping[str, Any] | None, fresh: list[Any]) -> Sequence[str]:
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"{what} needs paths, got {path!r:.80} of type {type(path).__name__}")
    text = os.fspath(path)
    if not isinstance(text, str):
        raise TypeError(f"{what} needs paths as text, got the bytes {text!r:.80}: decode them with os.fsdecode()")
    if not is_remote(text) and os.path.exists(text):
        return [text]
    return [one for name in expand_braces(text) for one in _globbed(what, name, storage_options, fresh)]


def _globbed(what: str, name: str, storage_options: Mapping[str, Any] | None, fresh: list[Any]) -> Sequence[str]:
    if is_remote(name) and not _GLOB.search(name):
        return [name]
    if not is_remote(name) and os.path.exists(name):
        return [name]
    if not _GLOB.search(name):
        raise FileNotFoundError(f"{what} found no file {name!r} (working directory {os.getcwd()!r})")
    if is_remote(name):
        system, path = file_system(name, storage_options)
        if not any(system is one for one in fresh):
            system.invalidate_cache()
            fresh.append(system)
        first, chain, _ = name.partition("::")
        in_archive = chain and "://" in first  # which a file system does not name
        found = sorted(as_url(name, one) if in_archive else system.unstrip_protocol(one) for one in system.glob(path))
    else:
        found = sorted(glob.glob(name, recursive=True))
    if not found:
        raise FileNotFoundError(f"{what} found no file for {name!r} (working directory {os.getcwd()!r})")
    return found


_LONGEST = 100  # characters of a name that is shown
_WITH_CUTS = 6  # what a plan of pieces lists: the files, the number of pieces and a digest of all
OTHER_CUTS = "An index beside a file that was made or removed since does that, or another version of torchpipe."


def size_of(path: str) -> int | None:
    """The size of a local file in bytes; None for anything else."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def listed(names: Sequence[str], sizes: Sequence[int | None]) -> list[Any]:
    """Plain data: how many, of how many bytes if that is known, the first and the last, a digest of names and sizes."""
    made = hashlib.sha256()
    for name, size in zip(names, sizes, strict=True):
        made.update(f"{name}\0{size}\0".encode("utf-8", "surrogateescape"))
    ends = [name[-_LONGEST:].encode("utf-8", "replace").decode() for name in (names[0], names[-1])] if names else []
    total = None if None in sizes else sum(size or 0 for size in sizes)
    return [len(names), total, ends, made.hexdigest()[:16]]


def listed_files(paths: Sequence[str]) -> list[Any]:
    """:func:`listed` of files that are named: where they lie does not count, their order does."""
    return listed(names_below(paths), [None if is_remote(path) else size_of(path) for path in paths])


def check_listed(what: str, saved: Any, now: list[Any], paths: Sequence[str]) -> None:
    """Raises: StateMismatchError, showing both sides, unless the files are those that there were; ``paths`` are now."""
    if saved == now:
        return
    if type(saved) is list and len(saved) == len(now) == _WITH_CUTS and saved[:-2] == now[:-2]:
        raise StateMismatchError(
            f"{what} is the same files as when the state was saved, cut at other places: then "
            f"there were {saved[-2]!r:.20} pieces (digest {saved[-1]!s:.16}), now there are {now[-2]} ({now[-1]}). "
            f"{OTHER_CUTS} A resume would repeat items and lose others: restore what there was, or begin the epoch anew"
        )
    dated = [(os.stat(path).st_mtime, path) for path in paths if size_of(path) is not None]
    newest = f" (the newest is {max(dated)[1]!r:.300})" if dated else ""
    raise StateMismatchError(
        f"{what} has changed since the state was saved: then it was {described(saved)}, now it is {described(now)}"
        f"{newest}. A resume would repeat items and lose others: restore the files, or begin the epoch anew. To let "
        "files come meanwhile, save the list of paths with the run and give that instead of looking them up"
    )


def described(value: Any) -> str:
    """A description, as text, of the list that :func:`listed` gave, or of a state's entry in its place."""
    try:
        count, size, ends, digest, *cuts = value
        between = f" from {ends[0]!r:.110} to {ends[1]!r:.110}" if ends else ""
        total = "" if size is None else f", {size!r:.20} bytes"
        pieces = f" in {cuts[0]!r:.20} pieces" if cuts else ""
        return f"{count!r:.20} files{pieces}{between}{total} (digest {(cuts[1] if cuts else digest)!s:.16})"
    except (TypeError, ValueError, LookupError):
        return f"{value!r:.80}"
