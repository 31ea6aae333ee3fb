"""An exception <-> bytes: type, message, notes and what it holds arrive; what cannot is named. It never fails."""

from __future__ import annotations

import dataclasses
import errno
import pickle
import threading
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchpipe.errors import NotSerializableError, RemoteTraceback, WorkerError
from torchpipe.node.failures import dump_error, load_error


def raised(make: Callable[[], BaseException]) -> BaseException:
    """The error with a traceback of this process."""

    def a_function_of_the_user() -> NoReturn:
        raise make()

    try:
        a_function_of_the_user()
    except BaseException as error:
        return error


def trip(make: Callable[[], BaseException]) -> BaseException:
    """What arrives; its cause holds the remote traceback, whatever the error is."""
    error = load_error(dump_error(raised(make)))
    assert isinstance(error.__cause__, RemoteTraceback)
    assert "in a_function_of_the_user" in str(error.__cause__)
    assert error.__suppress_context__
    with pytest.raises(type(error)):
        raise error
    return error


class TwoArguments(Exception):
    def __init__(self, code: int, what: str) -> None:
        super().__init__(f"{what} ({code})")
        self.code = code


class KeywordOnly(ValueError):
    def __init__(self, *, path: str) -> None:
        super().__init__()
        self.path = path

    def __str__(self) -> str:
        return f"bad file {self.path}"


class FileTrouble(OSError):
    """OSError's own fields are no attributes and depend on what its constructor was given."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.EIO, "cannot read", path)
        self.path = path


class Slotted(Exception):
    __slots__ = ("where",)

    def __init__(self, where: str) -> None:
        super().__init__("slotted")
        self.where = where


class HoldsALock(Exception):
    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()
        self.number = 3


class CannotBeShown(Exception):
    def __str__(self) -> str:
        raise RuntimeError("broken __str__")


class CannotBePickled(Exception):
    def __reduce__(self) -> NoReturn:
        raise TypeError("never")


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    code: int


class Unequal(Exception):
    """False as a truth value, and equal to nothing."""

    def __bool__(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = Exception.__hash__


# -- the type and the message arrive --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: ValueError("plain"),
        lambda: ValueError(),
        lambda: KeyError("missing"),
        lambda: KeyError(("a", 1)),
        lambda: StopIteration(3),
        lambda: OSError(errno.ENOENT, "no such file", "/a/b"),
        lambda: OSError(errno.ENOENT, "no such file", "/a/b", None, "/c"),
        lambda: OSError("only text"),
        lambda: ImportError("no module", name="m", path="/p"),
        lambda: SyntaxError("bad", ("f.py", 3, 4, "x = = 1")),
        lambda: UnicodeDecodeError("utf-8", b"\xff\xfe", 0, 1, "invalid start byte"),
        lambda: UnicodeEncodeError("ascii", "\xe9", 0, 1, "not in range"),
        lambda: NotSerializableError("torchpipe's own"),
        lambda: TwoArguments(7, "broken"),
        lambda: KeywordOnly(path="/a"),
        lambda: FileTrouble("/a/b"),
        lambda: Slotted("here"),
        lambda: HoldsALock("locked"),
        lambda: Frozen(4),
        lambda: Unequal("odd"),
        lambda: MemoryError(),
        lambda: RecursionError("deep"),
        lambda: SystemExit(3),
        lambda: ExceptionGroup("several", [ValueError("one"), KeyError("two")]),
    ],
)
def test_type_message_and_arguments_arrive(make: Callable[[], BaseException]) -> None:
    got, sent = trip(make), make()
    assert type(got) is type(sent)
    assert str(got) == str(sent)
    if not isinstance(sent, ExceptionGroup):
        assert got.args == sent.args


def test_fields_arrive() -> None:
    os_error = trip(lambda: OSError(errno.ENOENT, "no such file", "/a", None, "/b"))
    assert isinstance(os_error, FileNotFoundError)
    assert (os_error.errno, os_error.filename, os_error.filename2) == (errno.ENOENT, "/a", "/b")
    decode = trip(lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "why"))
    assert isinstance(decode, UnicodeDecodeError)
    assert (decode.object, decode.start, decode.end, decode.reason) == (b"\xff", 0, 1, "why")
    imported = trip(lambda: ImportError("no", name="m", path="/p"))
    assert isinstance(imported, ImportError)
    assert (imported.name, imported.path) == ("m", "/p")
    assert trip(lambda: TwoArguments(7, "x")).code == 7  # type: ignore[attr-defined]
    assert trip(lambda: Slotted("here")).where == "here"  # type: ignore[attr-defined]
    trouble = trip(lambda: FileTrouble("/a"))
    assert isinstance(trouble, FileTrouble)
    assert (trouble.errno, trouble.strerror, trouble.filename, trouble.path) == (errno.EIO, "cannot read", "/a", "/a")
    assert trip(lambda: Frozen(4)).code == 4  # type: ignore[attr-defined]


def test_what_cannot_be_pickled_is_replaced_by_its_text() -> None:
    held = trip(lambda: HoldsALock("locked"))
    assert str(held) == "locked"
    assert held.number == 3  # type: ignore[attr-defined]
    assert "lock" in held.lock  # type: ignore[attr-defined]
    in_arguments = trip(lambda: ValueError("bad", threading.Lock()))
    assert in_arguments.args[0] == "bad"
    assert "lock" in in_arguments.args[1]


@pytest.mark.parametrize("field", ["filename", "attribute"])
def test_an_attribute_that_cannot_be_pickled_costs_nothing_else(field: str) -> None:
    def make() -> BaseException:
        error = OSError(errno.EIO, "cannot read", "/a")
        if field == "filename":
            error.filename = threading.Lock()
        else:
            error.handle = threading.Lock()  # type: ignore[attr-defined]
        return error

    got = trip(make)
    assert isinstance(got, OSError)
    assert (got.errno, got.strerror) == (errno.EIO, "cannot read")
    assert str(got).startswith(f"[Errno {errno.EIO}] cannot read: ")


def test_a_local_class() -> None:
    class LocalError(ValueError):
        pass

    got = trip(lambda: LocalError("local", 3))
    assert isinstance(got, LocalError)
    assert got.args == ("local", 3)


def test_a_message_that_cannot_be_shown() -> None:
    got = trip(CannotBeShown)
    assert isinstance(got, CannotBeShown)
    assert "its message cannot be shown" in str(got)


# -- what cannot be rebuilt is named ---------------------------------------------------------------------------------


def test_a_class_that_cannot_be_sent_is_named() -> None:
    class Unsendable(Exception):
        lock = threading.Lock()  # in the class, which is sent by value since it is local

    got = trip(lambda: Unsendable("what happened"))
    assert type(got) is WorkerError
    assert "Unsendable: what happened" in str(got)
    assert f"{__name__}.test_a_class_that_cannot_be_sent_is_named" in str(got)


def test_an_error_that_refuses_to_be_pickled() -> None:
    got = trip(lambda: CannotBePickled("what happened"))
    assert isinstance(got, CannotBePickled | WorkerError)
    assert "what happened" in str(got)


def test_a_class_that_exists_only_there() -> None:
    """As where the worker's module search path is another one."""
    name, message, notes, text, _, _ = pickle.loads(dump_error(raised(lambda: ValueError("there"))))
    absent = pickle.dumps(ValueError("there")).replace(b"ValueError", b"AbsentName")
    got = load_error(pickle.dumps(("far.away.Absent", message, notes, text, absent, absent)))
    assert name == "builtins.ValueError"
    assert type(got) is WorkerError
    assert "far.away.Absent: there" in str(got)


# -- groups, notes, chains


def test_groups_keep_what_they_hold() -> None:
    def make() -> BaseException:
        inner = KeyError("two")
        inner.add_note("of the second")
        return ExceptionGroup("several", [ValueError("one"), ExceptionGroup("inner", [inner])])

    got = trip(make)
    assert isinstance(got, ExceptionGroup)
    assert isinstance(got.exceptions[0], ValueError)
    nested = got.exceptions[1]
    assert isinstance(nested, ExceptionGroup)
    assert repr(nested.exceptions[0]) == "KeyError('two')"
    assert nested.exceptions[0].__notes__ == ["of the second"]


def test_groups_of_what_cannot_be_pickled() -> None:
    got = trip(lambda: ExceptionGroup("several", [TwoArguments(7, "broken"), HoldsALock("locked")]))
    assert "several" in str(got)
    assert "TwoArguments: broken (7)" in str(got.__cause__)
    assert "HoldsALock: locked" in str(got.__cause__)


@pytest.mark.parametrize("kind", [ValueError, TwoArguments, HoldsALock])
def test_notes_are_kept_in_order(kind: Any) -> None:
    def make() -> BaseException:
        error: BaseException = kind(7, "x") if kind is TwoArguments else kind("x")
        error.add_note("first")
        error.add_note("second")
        return error

    got = trip(make)
    assert got.__notes__ == ["first", "second"]
    got.add_note("third")
    assert load_error(dump_error(got)).__notes__ == ["first", "second", "third"]
    assert "second" in str(got.__cause__)


@pytest.mark.parametrize("notes", [None, 3, "text", (1, 2), [CannotBeShown()]])
def test_odd_notes_break_nothing(notes: Any) -> None:
    def make() -> BaseException:
        error = ValueError("x")
        error.__notes__ = notes
        return error

    got = trip(make)
    assert repr(got) == "ValueError('x')"
    assert all(isinstance(note, str) for note in got.__notes__)


def test_the_remote_chain_is_in_the_text() -> None:
    def make() -> BaseException:
        try:
            raise KeyError("the cause")
        except KeyError as cause:
            error = ValueError("the effect")
            error.__cause__ = cause
            return error

    text = str(trip(make).__cause__)
    assert text.index("KeyError: 'the cause'") < text.index("direct cause") < text.index("ValueError: the effect")


def test_twice_through_a_process() -> None:
    """As an error of the dispatcher that a worker passes on."""
    once = trip(lambda: TwoArguments(7, "broken"))
    twice = load_error(dump_error(once))
    assert type(twice) is TwoArguments
    assert str(twice) == "broken (7)"
    assert "in a_function_of_the_user" in str(twice.__cause__)


ARGUMENTS = st.recursive(
    st.none()
    | st.integers()
    | st.text(max_size=5)
    | st.binary(max_size=3)
    | st.builds(threading.Lock)
    | st.builds(object),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)
KINDS = st.sampled_from(
    [Exception, ValueError, KeyError, OSError, RuntimeError, ImportError, SyntaxError, StopIteration]
)


@given(KINDS, st.lists(ARGUMENTS, max_size=5), st.dictionaries(st.text(max_size=3), ARGUMENTS, max_size=3))
def test_nothing_that_an_error_holds_can_break_the_way(
    kind: type[Exception], arguments: list[Any], attributes: dict[str, Any]
) -> None:
    try:
        error = kind(*arguments)
    except Exception:
        return  # SyntaxError wants its details in a certain form
    vars(error).update(attributes)
    got = load_error(dump_error(error))
    assert type(got) is type(error)
    assert isinstance(got.__cause__, RemoteTraceback)
