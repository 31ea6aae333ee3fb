"""Bases of nodes by their inputs. A node names the class of its passes in ``iterator``.

``input_col`` and ``output_col``: call a function with parts of an item and put its result back into it.

Random nodes that torch's loaders seed, and switch on and off.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, TypeVar

from torchpipe.indexed.shuffled import Switched
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe
from torchpipe.node.function_results import plain_key
from torchpipe.node.functional import lookup
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.validate import check_input

__all__ = [
    "CountingIterator",
    "ItemIterator",
    "Itemwise",
    "OneInput",
    "OnePerItem",
    "SeveralInputs",
    "Switchable",
    "apply_to_columns",
    "form_on",
    "single_output",
    "unchanged",
    "with_columns",
]

T_co = TypeVar("T_co", covariant=True)


class OneInput(IterDataPipe[T_co]):
    """A node with one input, ``source``."""

    form: ClassVar[str]
    """Its functional form, for messages: ``functional_datapipe`` sets it."""

    def __init__(self, source: IterDataPipe[Any]) -> None:
        check_input(self.form, source)
        self.source = source

    def iterate(self, context: Context) -> NodeIterator[T_co]:
        return self.iterator(self, context, self.source)  # type: ignore[no-any-return]


class OnePerItem(OneInput[T_co]):
    """A node that makes one item of each of its input."""

    def __len__(self) -> int:
        return len(self.source)


class SeveralInputs(IterDataPipe[T_co]):
    """A node with several equal inputs, ``datapipes``."""

    form: ClassVar[str]

    def __init__(self, *datapipes: IterDataPipe[T_co]) -> None:
        if not datapipes:
            raise ValueError(f"{self.form} needs at least one datapipe, got none")
        for datapipe in datapipes:
            check_input(self.form, datapipe)
        self.datapipes = datapipes  # the name is part of the graph's identity in saved states

    def iterate(self, context: Context) -> NodeIterator[T_co]:
        return self.iterator(self, context, *self.datapipes)  # type: ignore[no-any-return]  # one node may be several


class ItemIterator(NodeIterator[T_co]):
    """A pass that can go on behind an item of its input for which its own code raises."""

    def leave_out(self) -> bool:
        return True


class CountingIterator(ItemIterator[T_co]):
    """Makes one item of each, but from more than that item, for example also from its number. So its node is no
    ``one_to_one``, and still one item of its stream is lost with one of its input.
    """

    def lost(self, of_input: bool) -> int | None:
        return 1


class _ItemwiseIterator(ItemIterator[T_co]):
    node: Itemwise[T_co]

    def run(self) -> Iterator[T_co]:
        for item in self.source.items():
            held = [self.node.change(item)]
            del item  # it keeps no item: the consumer decides how long one lives
            yield held.pop()


class Itemwise(OnePerItem[T_co]):
    """A node that changes each item by itself, by its arguments alone: define :meth:`change`. It has no state."""

    iterator = _ItemwiseIterator
    one_to_one = True

    @abstractmethod
    def change(self, item: Any) -> T_co:
        """The item to hand out for ``item``, which stays as it is."""


def form_on(datapipe: Any, name: str) -> Callable[..., Any]:
    """The functional form ``name`` of another module's node, on ``datapipe``."""
    form = lookup("iter", name, datapipe)
    assert form is not None  # all forms are known once torchpipe.iter is imported
    return form


def unchanged(*parts: Any) -> Any:
    """The item, or the parts of it, as a function that does nothing hands it on."""
    return parts[0] if len(parts) == 1 else parts


def with_columns(fn: Callable[..., Any], input_col: Any) -> Callable[[Any], Any]:
    """A function of a whole item that calls ``fn`` with the item's columns; ``fn`` itself if ``input_col`` is None."""
    if input_col is None:
        return fn
    columns = _listed(input_col)
    if isinstance(input_col, list | tuple):
        return lambda item: fn(*[item[column] for column in columns])
    column = columns[0]
    return lambda item: fn(item[column])


def single_output(input_col: Any, output_col: Any) -> Any:
    """``output_col`` without a list around it. Raises: ValueError if it names several, or stands alone, and where it is
    missing while ``input_col`` names a part twice."""
    if input_col is None and output_col is not None:
        raise ValueError(
            f"output_col={output_col!r} needs an input_col: which part of the item does the function take?"
        )
    if input_col is not None and output_col is None and len(set(_listed(input_col))) < len(_listed(input_col)):
        raise ValueError(
            f"input_col={input_col!r} names a part twice, and the result is to take the place of the first while the "
            "others are removed: say where it goes, by output_col="
        )
    if isinstance(output_col, list | tuple):
        if len(output_col) != 1:
            raise ValueError(f"output_col must name one column, got {output_col!r}: the function has one result")
        output_col = output_col[0]
    return plain_key(output_col)


def _listed(columns: Any) -> list[Any]:
    return list(map(plain_key, columns)) if isinstance(columns, list | tuple) else [plain_key(columns)]


def apply_to_columns(fn: Callable[..., Any], input_col: Any, output_col: Any) -> Callable[[Any], Any]:
    """A function of a whole item that returns a copy of it with the result of ``fn`` in its place.

    Without ``output_col`` the result replaces the first input column and the other input columns are removed;
    ``output_col=-1`` appends it. Tuples come back as tuples. The item itself is never changed: others may hold it too.
    """
    if input_col is None:
        return fn
    call = with_columns(fn, input_col)
    first, *rest = _listed(input_col)
    target = first if output_col is None else output_col
    removed = sorted(rest, reverse=True) if output_col is None else []
    append = output_col is not None and output_col == -1

    def apply(item: Any) -> Any:
        result = call(item)
        changed = list(item) if isinstance(item, tuple) else copy.copy(item)
        if append:
            changed.append(result)
        else:
            changed[target] = result
        for column in removed:
            del changed[column]
        return tuple(changed) if isinstance(item, tuple) else changed

    return apply


T = TypeVar("T")


class Switchable(Switched[T], OneInput[T]):  # type: ignore[misc]  # the forms of both are the same
    """Base of those with one input."""

    seeded = True  # from the context: a pass is not told a seed by set_seed

    def __init__(self, source: IterDataPipe[Any]) -> None:
        OneInput.__init__(self, source)
        self.own_seed: int | None = None
        self.enabled = True
