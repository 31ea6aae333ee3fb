"""The registry behind ``dp.map(f).batch(8)``: which class each functional form builds.

Runs in every process. The typed view that editors and type checkers see is generated from this registry into
``functional_methods.pyi``. What users registered with torch is found as well, through their nodes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from torchpipe.compat.torch_datapipes import TorchIterDataPipe, TorchMapDataPipe
from torchpipe.node.protocol import NodeProtocol
from torchpipe.node.traits import is_ours
from torchpipe.on_demand import built_in, class_path
from torchpipe.public_names import FORMS
from torchpipe.rings import is_here

__all__ = ["forms", "functional_datapipe", "lookup", "registered"]

_C = TypeVar("_C", bound=type)

_registries: dict[str, dict[str, type]] = {"iter": {}, "map": {}}  # of users' nodes: the others are in FORMS
_TORCH: dict[str, Any] = {"iter": TorchIterDataPipe, "map": TorchMapDataPipe}


def _kind(cls: type) -> str:
    names = {base.__name__ for base in cls.__mro__}
    if "IterDataPipe" in names:
        return "iter"
    if "MapDataPipe" in names:
        return "map"
    raise TypeError(f"{cls.__name__} is not an IterDataPipe or MapDataPipe: only nodes have functional forms")


def functional_datapipe(name: str, *, on: str | None = None) -> Callable[[_C], _C]:
    """Class decorator: make ``dp.<name>(*args)`` build ``cls(dp, *args)``.

    ``on`` says which kind of node gets the form, ``"iter"`` or ``"map"``; by default the kind that the class is itself
    (``to_iter_datapipe`` is an iterable node with a form on map-style ones).

    A class of the same module and name takes the place of the one before it: a cell of a notebook that runs again, a
    module that is imported again.

    Raises: ValueError if the name is no identifier, is one of torchpipe's own forms or another class's, or is what
    every node has as an attribute (then ``dp.<name>`` would be that); TypeError if the class is no node.
    """
    if not name.isidentifier():
        raise ValueError(f"a functional name must be an identifier, got {name!r}")
    if name in vars(NodeProtocol):
        raise ValueError(f"the functional name {name!r} is an attribute that every node has: dp.{name} would be that")

    def register(cls: _C) -> _C:
        kind = on or _kind(cls)
        if is_ours(cls.__module__):
            cls.form = name  # type: ignore[attr-defined]  # for the node's messages
        if class_path(kind, name) == (cls.__module__, cls.__qualname__):
            return cls  # found there: if its import is interrupted now, the next one makes another class
        if class_path(kind, name) is not None:
            raise ValueError(
                f"dp.{name} is one of torchpipe's own forms, which are not replaced: give yours another name"
            )
        taken = _registries[kind].get(name)
        if taken is not None and _definition(taken) != _definition(cls):
            raise ValueError(
                f"the functional name {name!r} is taken by {taken.__module__}.{taken.__qualname__}: give that of "
                f"{cls.__module__}.{cls.__qualname__} another name"
            )
        _registries[kind][name] = cls
        return cls

    return register


def _definition(cls: type) -> tuple[str, str]:
    """The place of a class's definition: its module, also where that is the program that runs, and its name there."""
    module = cls.__module__
    if module in ("__main__", "__mp_main__"):
        main = sys.modules.get(module)
        spec = getattr(main, "__spec__", None)
        module = Path(getattr(main, "__file__", None) or module).stem if spec is None else spec.name
    return module, cls.__qualname__


def lookup(kind: str, name: str, node: Any) -> Callable[..., Any] | None:
    """The bound functional form ``node.<name>``, or None if there is none."""
    cls = _class_of(kind, name)
    return _registered_with_torch(kind, name, node) if cls is None else _form(cls, name, node)


def _class_of(kind: str, name: str) -> type | None:
    """The class that a user has registered under that name, or else this library's node."""
    cls = _registries[kind].get(name)
    return built_in(kind, name) if cls is None else cls


def _form(cls: type, name: str, node: Any) -> Callable[..., Any]:
    def build(*args: Any, **kwargs: Any) -> Any:
        return cls(node, *args, **kwargs)

    build.__name__ = name
    build.__doc__ = cls.__doc__
    return build


def _registered_with_torch(kind: str, name: str, node: Any) -> Callable[..., Any] | None:
    """A user's form that torch's ``functional_datapipe`` or ``register_datapipe_as_function`` made; none of torch's."""
    form = _TORCH[kind].functions.get(name)
    built = form.args[0] if isinstance(form, partial) and form.args else form
    if form is None or str(getattr(built, "__module__", "")).startswith(("torch.", "torchdata.")):
        return None
    return partial(form, node)


def forms(kind: str) -> set[str]:
    """The functional names of one kind, ``"iter"`` or ``"map"``. Imports nothing."""
    return {*FORMS[kind], *_registries[kind]}


def registered(kind: str) -> dict[str, type]:
    """Functional name -> class, of one kind, ``"iter"`` or ``"map"``. Imports all nodes that are installed."""
    here = (name for name in sorted(forms(kind)) if is_here(FORMS[kind].get(name, "").partition(":")[0]))
    return {name: cls for name in here if (cls := _class_of(kind, name)) is not None}
