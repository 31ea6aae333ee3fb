"""The draws of a ``mix``, by source, and the number from which its weights may change. Runs in the user's process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchpipe.errors import StateError
from torchpipe.execution.epoch import EpochStart
from torchpipe.execution.interface import ReadingServiceInterface
from torchpipe.iter import Mixer
from torchpipe.loader.state import LoaderState
from torchpipe.node.fingerprint import describe_graph
from torchpipe.node.traits import DataPipe, traits_of, walk
from torchpipe.state.by_node import found_in

__all__ = ["Mixture", "SourceCount", "mixtures_of"]


@dataclass(frozen=True, kw_only=True)
class SourceCount:
    """One input of a ``mix``: ``samples`` of it in this epoch, in all shards of this rank (None: a state of a former
    torchpipe did not count them). ``passes``: how often it has been read to its end, in the shard where that is most.
    """

    name: str
    samples: int | None
    passes: int


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """One ``mix``, ``number`` among the nodes of the graph's description. Weights may be others from ``next_change``
    samples (or tokens) on.
    """

    number: int
    sources: tuple[SourceCount, ...]
    next_change: int


def mixtures_of(graph: DataPipe, service: ReadingServiceInterface, position: LoaderState) -> list[Mixture]:
    """The mixture of each ``mix`` of the graph. Raises: StateError."""
    numbered = [node for node in walk(graph) if traits_of(node).alters_stream]
    mixers = [(number, node) for number, node in enumerate(numbered) if isinstance(node, Mixer)]
    if not mixers:
        return []
    states: dict[int, list[Mapping[str, Any]]] = {}
    if position.position is not None:
        identity: dict[str, Any] = position.identity
        start = EpochStart(**identity, delivered=position.delivered, state=position.position)
        states = found_in(service.exact_position(start, may_replay=True), describe_graph(graph)).states
        if position.delivered and not all(number in states for number, _ in mixers):
            raise StateError(
                "where mix() stands cannot be told here: branches of one pass meet in the graph, or a part of it has "
                "to be replayed from its start"
            )
    return [_mixture(number, node, states.get(number, [])) for number, node in mixers]


def _mixture(number: int, node: Mixer[Any], states: list[Mapping[str, Any]]) -> Mixture:
    inputs = range(len(node.datapipes))
    known = all(state.get("given") is not None for state in states)
    names = node.names or [f"input {place}" for place in inputs]
    sources = tuple(
        SourceCount(
            name=names[place],
            samples=sum(state["given"][place] for state in states) if known else None,
            passes=max((max(state["rounds"][place], int(state["ended"][place])) for state in states), default=0),
        )
        for place in inputs
    )
    # Of a mix that nothing was drawn from, any weights may be others
    begun = [state["count"] for state in states if state["items"]]
    return Mixture(number=number, sources=sources, next_change=int(max(begun)) + 1 if begun else 0)
