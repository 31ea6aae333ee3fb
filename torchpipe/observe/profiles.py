"""The rates that the nodes of a graph could have, each alone and together: data, and as text. Pure.

Made by ``torchpipe.profile``. Rates are items a second, of the node's own items unless a field says otherwise; ``None``
means not known.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchpipe.observe.outlook import Prediction
from torchpipe.observe.text import PlainData, format_count, format_table
from torchpipe.stats.model import Section

__all__ = ["NodeProfile", "Profile", "Rate"]


@dataclass(frozen=True, kw_only=True)
class Rate:
    """The rate of so many workers."""

    workers: int
    items_per_s: float


@dataclass(frozen=True, kw_only=True)
class NodeProfile(PlainData):
    """One node. ``share``: its part of the time that an item of the graph takes, 0 to 1, in a run of all."""

    number: int  # as explain() has it
    name: str
    section: Section
    repeated: bool = False  # every shard does all of this: more workers do not divide it
    prefix_per_s: float | None = None  # the graph up to this node, in one process
    alone_per_s: float | None = None  # this node, with what it reads at hand already
    cpu_share: float | None = None  # of the time alone that it was on a core
    share: float | None = None
    rates: tuple[Rate, ...] = ()  # of this node alone, with so many workers
    error: str = ""  # why a figure is missing


@dataclass(frozen=True, kw_only=True)
class Profile(PlainData):
    """The result of :func:`torchpipe.profile`. ``str()`` begins with the sentence."""

    sentence: str
    slowest: int | None  # the number of the node that limits the graph; None if none stands out
    items_per_s: float | None  # of the whole graph, in one process
    loop_per_s: float | None  # batches that ``step`` could take if data were free
    keeps_up: int | None  # the least number of workers with which ``step`` would hardly wait
    predictions: tuple[Prediction, ...] = ()  # of the whole graph, with so many workers
    nodes: tuple[NodeProfile, ...] = ()
    cores: int = 1

    def __str__(self) -> str:
        counts = [rate.workers for rate in next((node.rates for node in self.nodes if node.rates), ())]
        head = ("", "node", "where", "share", "up to here", "alone", *(f"x{count}" for count in counts))
        lines = [self.sentence, "", format_table([head, *(_row(node, counts) for node in self.nodes)])]
        if self.predictions:
            foretold = ", ".join(f"{item.workers}: {format_count(item.items_per_s)}/s" for item in self.predictions)
            lines += ["", f"items/s of the graph with so many workers, as predicted: {foretold}"]
        if self.loop_per_s is not None:
            lines += ["", f"your step, if data were free: {format_count(self.loop_per_s)}/s"]
        for node in self.nodes:
            if node.error:
                lines += ["", f"{node.number} {node.name}: {node.error}"]
        return "\n".join(lines)


def _row(node: NodeProfile, counts: list[int]) -> tuple[str, ...]:
    rates = {rate.workers: rate.items_per_s for rate in node.rates}
    share = "-" if node.share is None else f"{100 * node.share:.0f} %"
    cells = (_rate(node.prefix_per_s), _rate(node.alone_per_s), *(_rate(rates.get(count)) for count in counts))
    return (str(node.number), node.name, node.section, share, *cells)


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{format_count(value)}/s"
