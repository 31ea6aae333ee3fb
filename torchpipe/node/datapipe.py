"""``IterDataPipe`` and ``MapDataPipe``: immutable, picklable descriptions of one step of a pipeline.

Runs in every process.

They subclass torch's classes, so that its loaders and older nodes accept them, without the per-item hooks:
torch's metaclass wraps every ``__iter__`` in bookkeeping for a single live iterator, which torchpipe does not need.
"""

from __future__ import annotations

import difflib
import functools
from abc import ABC
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, TypeVar, cast

from torchpipe.compat.torch_datapipes import DataChunk, TorchIterDataPipe, TorchMapDataPipe, TorchMeta
from torchpipe.node.context import Context
from torchpipe.node.functional import forms, functional_datapipe, lookup
from torchpipe.node.functional_methods import IterMethods, MapMethods
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.protocol import NodeProtocol
from torchpipe.node.replay import BOUND
from torchpipe.node.traits import inputs_of, named_inputs
from torchpipe.node.user_code import refuse_hidden_inputs

__all__ = ["DataChunk", "IterDataPipe", "MapDataPipe", "NodeAttributeError", "functional_datapipe", "iterate"]

T_co = TypeVar("T_co", covariant=True)


def _context(node: IterDataPipe[Any], **options: Any) -> Context:
    context = Context.for_graph(node, **options)
    refuse_hidden_inputs(context.graph.nodes)
    return context


def _contextual(user_iter: Callable[[Any], Iterator[Any]]) -> Callable[[Any], Iterator[Any]]:
    """Let ``iter(node)`` make a pass with state; the user's own ``__iter__`` runs on that pass's private copy."""

    @functools.wraps(user_iter)
    def __iter__(self: Any) -> Iterator[Any]:
        if BOUND in self.__dict__:
            return user_iter(self)
        return _context(self).iterate(self)

    return __iter__


class _NodeMeta(TorchMeta):
    """Makes classes as torch's metaclass does, but without its iterator and reset hooks: it wraps what it is shown."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> Any:
        hooked = {method: namespace.pop(method) for method in ("__iter__", "reset") if method in namespace}
        if "__iter__" in hooked and "_is_base" not in namespace:
            hooked["__iter__"] = _contextual(hooked["__iter__"])
        made = super().__new__(mcs, name, bases, namespace, **options)  # type: ignore[no-untyped-call]
        for method, function in hooked.items():
            setattr(made, method, function)
        return made


class NodeAttributeError(AttributeError):
    """Says why only when it is shown: asking for what is not there, as ``hasattr`` does, costs next to nothing."""

    def __str__(self) -> str:
        kind, node, name = self.args
        if kind == "map" and name in forms("iter"):
            hint = f": {name} is a form of iterable nodes, so put .shuffle() or .to_iter_datapipe() before it"
        elif found := difflib.get_close_matches(name, forms(kind), 1):
            hint = f": did you mean {found[0]!r}?"
        else:
            hint = ": a form of your own is there once the module that defines its class is imported"
        return f"{node} has no attribute or functional form {name!r}{hint}"


class _WithForms:
    """Finds the functional forms of a node, as it is asked for attributes that it does not have."""

    def __getattr__(self, name: str) -> Any:
        kind = "iter" if isinstance(self, TorchIterDataPipe) else "map"
        form = None if name.startswith("__") else lookup(kind, name, self)
        if form is None:
            raise NodeAttributeError(kind, type(self).__name__, name)
        return form

    def __repr__(self) -> str:
        return type(self).__name__


# The methods come first: torch's own stub types the same names for its nodes.
class IterDataPipe(IterMethods[T_co], _WithForms, NodeProtocol, TorchIterDataPipe[T_co], metaclass=_NodeMeta):  # type: ignore[misc]
    """A step of a pipeline that yields items of type ``T_co``: a description without position, file or thread.

    Write your own in one of two ways. With state: name its :class:`~torchpipe.NodeIterator` in ``iterator``, or return
    one from ``iterate(self, context)``. As a plain generator: define ``__iter__`` as for torch; it works everywhere and
    is resumed by replay, unless the iterator it returns (or the node) has ``state_dict`` and ``load_state_dict``.

    The inputs of a node are the nodes among its attributes, in lists, tuples, dicts and dataclasses too; one that it
    holds in another object, other than a function, raises :class:`~torchpipe.errors.GraphError`. ``iter(node)`` starts
    a pass that disturbs no other.
    """

    _is_base = True

    iterator: ClassVar[Any] = None
    """The class of its passes, a ``NodeIterator``: made with the node, the context and its inputs, which are those that
    ``inputs`` names, else all nodes among its attributes, each once.
    """

    def iterate(self, context: Context) -> NodeIterator[T_co]:
        """A new pass over this node. Raises: NotImplementedError if the class does not say how to iterate."""
        kind = type(self).iterator
        if kind is None:
            raise NotImplementedError(
                f"{type(self).__name__} must name its NodeIterator (iterator = ...), or define iterate(self, context), "
                "which returns one, or __iter__(self)"
            )
        held = named_inputs(self) if type(self).inputs else inputs_of(self)
        inputs = [item for item in held if isinstance(item, TorchIterDataPipe)]
        return cast("NodeIterator[T_co]", kind(self, context, *inputs))

    def __iter__(self) -> Iterator[T_co]:
        bound = self.__dict__.get(BOUND)
        if bound is not None:  # super().__iter__() inside a user's __iter__
            return self.iterate(bound)
        return cast("NodeIterator[T_co]", _context(self).iterate(self))


class MapDataPipe(MapMethods[T_co], _WithForms, NodeProtocol, TorchMapDataPipe[T_co], ABC):  # type: ignore[misc]
    """A step of a pipeline that is read by key: define ``__getitem__`` and ``__len__``."""


def iterate(
    node: IterDataPipe[T_co], *, seed: int = 0, epoch: int = 0, shard: int = 0, num_shards: int = 1
) -> NodeIterator[T_co]:
    """One pass over ``node`` in this process, with everything that fixes its stream given.

    ``iter(node)`` is the same with a seed drawn from torch's default generator, another one each time.
    """
    context = _context(node, seed=seed, epoch=epoch, shard=shard, num_shards=num_shards)
    return cast("NodeIterator[T_co]", context.iterate(node))
