"""Classes of the user's script, in the processes that import the script, or have none.

Under spawn and forkserver a process has imported the script itself: without ``if __name__ == "__main__":``, and with
modules, arguments and globals as they are there. Its classes are other objects than those of the main process. A class
that came by value would be a third one, so that ``split is Split.TRAIN`` were False, and ``isinstance`` too, for all
that is pickled by name: in files, in items, in states.

The rule: *a name of the script is one class in each process, and a process that begins has it as the main one has it.*

- A pickle says under which name ``__main__`` has the class, and, as cloudpickle says it, what the class consists of.
  Whoever loads it takes the class that ``__main__`` has there under that name, if that is of the same kind (metaclass,
  bases, members of an Enum), and else makes one.
- From the image that a process begins with, the class is also given what it consists of in the main process:
  attributes that the script has set, methods that see the present globals. So ``Config.rate = 1`` or ``global CONFIG``
  behind the guard count under every start method, and nobody has to find out which names these are.
- A class that ``__main__`` lacks there (it stands behind the guard, in a notebook, in ``python -c``) is made from the
  image and bound to its name, so it is one class from then on, too. A class that is not found under its name in the
  main process (it was made in a function, or its name is another's by now) goes by value.
- All that comes later (items, errors, entries, states) takes the class as it is: a result does not change classes of
  the main process, nor an old state those of a worker.

Functions of the script go by value, with the present globals that they read: hardly anybody asks which object a
function is, while its globals are often set behind the guard. The classes among them are those of the rule.

A lock that is an attribute of a class of the script, or a global that a function of the script reads, is in each
process the one that the script has made there under this name: locks are alike. What else cannot be pickled is refused.

Runs in every process.
"""

from __future__ import annotations

import operator
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["locks_within", "named", "of_script"]

_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_THIS = os.urandom(16)  # this process, and those that are forked from it: they have the classes


def named(cls: type, reduced: tuple[Any, ...], *, begins: bool) -> tuple[Any, ...]:
    """``reduced``, cloudpickle's parts of a class, as those of a class that is looked for by its name in ``__main__``.

    ``reduced`` itself if it is no class of the script's. ``begins``: a process begins with the pickle.
    """
    if getattr(cls, "__module__", None) != "__main__" or _in_main(cls.__qualname__) is not cls:
        return reduced
    make, arguments, content, _, _, fill = reduced
    maker = _THIS if begins else b""
    wanted = (cls.__qualname__, _kind(cls), begins, make, arguments)
    outermost = _in_main(cls.__qualname__.partition(".")[0])  # one that stands in another is found in that alone
    more = (_alike(cls), outermost) if begins else ({}, None)
    return _found, wanted, (maker, fill, content, *more), None, None, _filled


def locks_within(value: Any, reduced: tuple[Any, ...]) -> dict[int, str]:
    """The ids of the locks that a class or function of the script holds, with the names that ``__main__`` has."""
    if getattr(value, "__module__", None) != "__main__":
        return {}
    if isinstance(value, type):
        held = {f"{value.__qualname__}.{key}": item for key, item in vars(value).items()}
    else:
        held = reduced[2][1]["__globals__"]
    return {id(item): name for name, item in held.items() if isinstance(item, _LOCKS) and _in_main(name) is item}


def of_script(name: str) -> Any:
    """The object that ``__main__`` has under the name in this process. Raises: RuntimeError if there is none."""
    found = _in_main(name)
    if found is None:
        raise RuntimeError(
            f"{name} of the script is a lock, and the script has none in this process: make it outside of "
            'if __name__ == "__main__":, so that each process that imports the script has its own'
        )
    return found


def _alike(cls: type) -> dict[str, Any]:
    """The attributes that are those of a base, too, which cloudpickle leaves out."""
    return {name: value for name, value in vars(cls).items() for base in cls.__bases__ if vars(base).get(name) is value}


def _in_main(name: str) -> Any:
    try:
        return operator.attrgetter(name)(sys.modules["__main__"])
    except AttributeError:
        return None


def _kind(value: Any) -> tuple[Any, ...]:
    """Equal for the class that the script makes here and the one that it makes elsewhere."""
    bases = [(base.__module__.replace("__mp_main__", "__main__"), base.__qualname__) for base in _bases(value)]
    return type(value), tuple(bases), (*getattr(value, "__members__", ()),)


def _bases(value: Any) -> tuple[type, ...]:
    return value.__bases__ if isinstance(value, type) else ()


def _found(name: str, kind: tuple[Any, ...], begins: bool, make: Callable[..., type], arguments: Any) -> type:
    found = _in_main(name)
    if found is not None and _kind(found) == kind:
        return found  # type: ignore[no-any-return]
    made = make(*arguments)
    made.__qualname__ = name  # cloudpickle keeps the last part
    if begins and found is None and "." not in name:
        setattr(sys.modules["__main__"], name, made)
    return made


def _filled(cls: type, state: tuple[bytes, Callable[[Any, Any], Any], Any, dict[str, Any], Any]) -> None:
    maker, fill, content, further, _ = state
    if maker not in (b"", _THIS) or _in_main(cls.__qualname__) is not cls:
        fill(filled := _Filled(cls), content)
        for name, value in further.items():
            setattr(filled, name, value)


class _Filled:
    """A class whose attributes are set; an Enum's members, which cannot be, it has."""

    def __init__(self, cls: type) -> None:
        vars(self)["of"] = cls

    def __getattr__(self, name: str) -> Any:
        return getattr(self.of, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in getattr(self.of, "__members__", ()):
            setattr(self.of, name, value)
