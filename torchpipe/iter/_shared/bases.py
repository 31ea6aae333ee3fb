"""Bases of nodes by their inputs. A node names the class of its passes in ``iterator``."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, TypeVar

from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe
from torchpipe.node.functional import lookup
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.validate import check_input

__all__ = ["CountingIterator", "ItemIterator", "Itemwise", "OneInput", "OnePerItem", "SeveralInputs", "form_on"]

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

    def __init__(self, datapipes: tuple[IterDataPipe[Any], ...]) -> None:
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
