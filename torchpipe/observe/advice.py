"""Who is the slowest, and what to change: a pure function of the figures.

The loop's time is its own or waiting. What it waited for is followed from the loop down: the device stage, the main
section, the merge, and behind that the workers, each of which is at work, or waits for the consumer or for what it is
dealt. The first that is mostly at work, while what follows it mostly waits, holds the stream up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from torchpipe.observe.outlook import Outlook, Prediction
from torchpipe.observe.text import PlainData
from torchpipe.stats.model import LoaderStats, NodeStats, ProcessStats, StageStats, rebuilt_s

__all__ = ["Advice", "Bottleneck", "advise"]

Bottleneck: TypeAlias = Literal[
    "nothing", "consumer", "device", "main", "merge", "transport", "node", "source", "dispatcher", "input", "workers",
    "ranks",
]  # fmt: skip
"""The part that holds the stream up: ``nothing`` known yet; the ``consumer``, which is your own code; the ``device``
stage; a node of the ``main`` section; ``merge`` skew: one shard slower than the others; ``transport``: packing, copying
and rebuilding items; a ``node`` of the workers, or a ``source`` among them; a node of the ``dispatcher``; ``input``:
what the main process deals (a sampler); ``workers``: these, and which node is not measured; ``ranks``: what ranks tell
each other, for which the quickest waits for the slowest."""

_LITTLE = 0.05  # who waits less than this part of the time does not wait
_WORTH = 1.3  # what twice as many workers must bring to be advised
_SLOW_SAMPLER = 0.3  # of the time that the loop waited: what takes less is not what it waited for
_SKEW = 0.35  # by which a worker is busier than another where one shard holds up the others
_IN_USE = 0.5  # of what could be had at most: where less is, that is not the limit
_TOLD_S = 0.1  # of an epoch: in less, what is done once, or an interruption, looks like a slow step
_FORETOLD_S = 1.0  # the same, of other numbers of workers: starting these takes about as long
_QUICK_S = 1e-3  # an item that is made as quickly may take longer on its way from a worker
_HANGS_S = 5.0  # at one item, and so much of what the loop waited: it hangs there
_HANGS = 0.5
_REPLACED_S = 10.0  # what a death may cost: finding it, starting anew, making again what was under way
_OTHERS = 0.25  # of the machine: where other programs use more, its times are theirs too


@dataclass(frozen=True, kw_only=True)
class Advice(PlainData):
    """Who is the slowest, in one sentence, and what to change."""

    sentence: str
    bottleneck: Bottleneck
    node: int | None = None  # its number, where it is one
    change: str = ""  # what to do, in words; empty where nothing need be done
    keeps_up: int | None = None  # with how many workers the loop would hardly wait; None: not known, or with no number
    predictions: tuple[Prediction, ...] = ()  # for 1, 2, 4 ... workers, and those there are


def advise(stats: LoaderStats) -> Advice:
    """The advice for ``stats``, whose own is not looked at."""
    consumer = stats.consumer
    if consumer.start_s is None:
        return _without_items(stats)
    if consumer.items < 2 or not consumer.elapsed_s:
        return Advice(sentence="One item has been delivered: too little to say who is slow.", bottleneck="nothing")
    if (took_s := consumer.start_s + consumer.elapsed_s) < _TOLD_S:
        short = f"This has taken {1e3 * took_s:.0f} ms so far: too little to say who is slow."
        return Advice(sentence=short, bottleneck="nothing")
    found = _find(stats)
    outlook = Outlook.of(stats)
    outlook = replace(outlook, complete=outlook.complete and _can_foretell(stats, outlook))
    scales = found.bottleneck in ("workers", "node", "source", "consumer", "nothing")
    keeps_up = outlook.keeps_up() if scales else None
    predictions = outlook.predictions([1, 2, 4, 8, 16, max(1, stats.workers), keeps_up or 1]) if scales else ()
    sentence = f"You waited {_percent(consumer.wait_share)} of the time. {found.text}"
    hint, change = _hint(stats, found, outlook, keeps_up)
    return Advice(
        sentence=sentence + hint,
        bottleneck=found.bottleneck,
        node=found.node,
        change=change,
        keeps_up=keeps_up,
        predictions=predictions,
    )


def _can_foretell(stats: LoaderStats, outlook: Outlook) -> bool:
    """True if the figures say what other numbers of workers would do."""
    if stats.consumer.elapsed_s < _FORETOLD_S or (stats.others or 0.0) > _OTHERS:
        return False
    return stats.workers > 0 or outlook.item_s > _QUICK_S


def _without_items(stats: LoaderStats) -> Advice:
    if stats.state == "new":
        return Advice(sentence="Nothing has been iterated yet.", bottleneck="nothing")
    if stats.state == "finished":
        sentence = "The epoch has ended, and this iterator had no item to deliver."
        if any(event.kind == "skip" for event in stats.events):
            sentence += " Items were left out because of errors (events)."
        return Advice(sentence=sentence, bottleneck="nothing")
    busy = [f"{process.name} is {process.doing}" for process in stats.processes if process.kind != "main"]
    doing = f" ({', '.join(busy[:4])})" if busy and stats.state == "running" else ""
    return Advice(sentence=f"No item has been delivered yet{doing}.", bottleneck="nothing")


@dataclass(frozen=True)
class _Found:
    bottleneck: Bottleneck
    text: str
    node: int | None = None
    change: str = ""


def _find(stats: LoaderStats) -> _Found:
    consumer = stats.consumer
    if consumer.wait_share < _LITTLE:
        return _Found("consumer", "The data keeps up: the slowest step is your own code.")
    wait_s, merged_s = consumer.wait_s, sum(merge.wait_s for merge in stats.merges)
    for stage in stats.stages:
        feed = stage.feed
        if wait_s > 2 * feed.consumer_wait_s:  # it has what is asked for: the time goes behind it
            return _in_main(stats)
        moving_s = feed.transfer_s / max(1, stage.threads)
        if stage.device and moving_s > feed.pull_s:
            return _Found(
                "device",
                f"The slowest step is {stage.name}: moving batches takes {_ms(moving_s, feed.items)} each",
                stage.node,
                "Let several batches move at a time (transfer_threads=2, host_prefetch=2), or make them smaller "
                "(dtype=, uint8 images converted on the device).",
            )
        wait_s = feed.pull_s if stage.device else min(wait_s, feed.consumer_wait_s)
    if wait_s > 2 * merged_s:
        return _in_main(stats)
    if not stats.workers:
        return _in_process(stats)
    return _among_workers(stats)


def _in_main(stats: LoaderStats) -> _Found:
    beside = {node.number for node in stats.nodes if node.section == "main"} - {stage.node for stage in stats.stages}
    if stats.stages and not beside:
        return _at_hand_over(stats.stages[0])
    if stats.ranks > 1 and not beside:
        return _Found(
            "ranks",
            "Most of that, this rank waited for the others",
            None,
            "See which rank waits least: that one is slow. Where all wait as much, agree more rarely (agree_every=).",
        )
    if not beside:
        return _Found("nothing", "Who is slow cannot be told")
    node = _slowest([node for node in stats.nodes if node.section == "main"])
    name = "the main section" if node is None else f"`{node.name}`"
    return _Found(
        "main",
        f"The slowest step is {name}, which runs in this process, once",
        None if node is None else node.number,
        "Put it before the merge (before to_device(), or let is_replicable() return True), where every worker does a "
        "part of it.",
    )


def _at_hand_over(stage: StageStats) -> _Found:
    """The stage has the batch, and the loop not yet."""
    if stage.feed.syncs or stage.feed.waits:
        return _Found(
            "consumer",
            f"Most of that, {stage.name} started the work of your own steps, or waited for it: the slowest step "
            "is your own code.",
        )
    return _Found(
        "device", f"The slowest step is {stage.name}, where your loop takes batches over", stage.node or None, ""
    )


def _in_process(stats: LoaderStats) -> _Found:
    node = _slowest(list(stats.nodes), stats.consumer.wait_s)
    if node is None:
        return _Found("workers", "Items are made in this process, when your loop asks for them")
    return _Found(_kind_of(node, stats), f"The slowest step is `{node.name}`, in this process", node.number)


def _among_workers(stats: LoaderStats) -> _Found:
    workers = stats.worker_processes
    if 2 * rebuilt_s(stats.merges) > sum(merge.wait_s for merge in stats.merges):
        return _transport("rebuilding them in this process")
    found = _hanging(stats, workers) or _skew(stats, workers)
    if found is not None:
        return found
    making_s = sum(worker.making_s for worker in workers)
    sending_s = sum(worker.sending_s for worker in workers)
    input_s = sum(worker.input_wait_s for worker in workers)
    if input_s > making_s + sending_s:
        return _starved(stats)
    if sending_s > making_s:
        return _transport("packing and sending them in the workers")
    node = _slowest([node for node in stats.nodes if node.section == "shard"])
    busy = sum(worker.busy_share > 0.5 for worker in workers)
    what = f"busy in {busy} of {len(workers)} {_kind(stats)}"
    if node is None:
        return _Found("workers", f"The slowest step is making items, {what}")
    return _Found(_kind_of(node, stats), f"The slowest step is `{node.name}`, {what}", node.number)


def _kind_of(node: NodeStats, stats: LoaderStats) -> Bottleneck:
    """A node that reads nothing, but for sequences and the like, which have no items of their own, is a source."""
    reads = any(other.number in node.inputs and other.items is not None for other in stats.nodes)
    return "node" if reads else "source"


def _hanging(stats: LoaderStats, workers: list[ProcessStats]) -> _Found | None:
    """A worker that is at one item for most of what the loop has waited; None if there is none."""
    at_it = [worker for worker in workers if worker.doing == "making" and worker.doing_s > _HANGS_S]
    longest = max(at_it, key=lambda worker: worker.doing_s, default=None)
    if stats.state != "running" or longest is None or longest.doing_s < _HANGS * stats.consumer.wait_s:
        return None
    what = "is" if stats.method == "thread" else f"(pid {longest.pid}) is"
    return _Found(
        "merge",
        f"Most of that, {longest.name} {what} at one item: {longest.doing_s:.0f} s so far",
        None,
        f"See what it waits for (py-spy dump --pid {longest.pid}), and set timeout=: then an item that takes longer "
        "does not hold up the run in silence. More workers would wait as well.",
    )


def _skew(stats: LoaderStats, workers: list[ProcessStats]) -> _Found | None:
    """One worker that is at work while others wait for it; None if there is none."""
    if len(workers) < 2:
        return None
    by_share = sorted(workers, key=lambda worker: worker.busy_share)
    idlest, busiest = by_share[0], by_share[-1]
    waiting = idlest.credit_wait_s / max(1e-9, idlest.busy_s + idlest.credit_wait_s + idlest.input_wait_s)
    if busiest.busy_share - idlest.busy_share < _SKEW or waiting < _SKEW:
        return None
    busy = f"{_percent(busiest.busy_share)} of its time, {idlest.name} {_percent(idlest.busy_share)}"
    if _is_dispatched(stats):
        return _Found(
            "merge",
            f"Batches are handed out in order, and some take far longer than others: {busiest.name} is busy {busy}",
            None,
            "Look for samples that take long (loader.measuring = True gives their p99), let workers run further ahead "
            "(prefetch_factor=), or, where the order does not matter, in_order=False.",
        )
    shards = ", ".join(map(str, busiest.shards))
    which = f"shard {shards} is the slow one" if len(busiest.shards) < 2 else f"the slow one is among shards {shards}"
    return _Found(
        "merge",
        f"Items come from the shards in turn, and {which}: {busiest.name} is busy {busy}",
        None,
        "Divide the data evenly (shuffle before sharding_filter(), files of one size), or let a worker have several "
        "shards (num_shards a multiple of num_workers); where the order does not matter, in_order=False.",
    )


def _starved(stats: LoaderStats) -> _Found:
    node = _slowest([node for node in stats.nodes if node.section == "dispatch"])
    if _is_dispatched(stats):
        if node is not None and (node.self_s or 0.0) < _SLOW_SAMPLER * stats.consumer.wait_s:
            return _transport("telling the workers what to make, and taking it back")
        name = "the sampler" if node is None else f"`{node.name}`"
        return _Found(
            "input",
            f"The workers wait for what they are dealt: the slowest step is {name}, in this process",
            None if node is None else node.number,
            "Make the sampler quicker: draw all indices at once, and keep files and sizes out of it.",
        )
    name = "the dispatcher" if node is None else f"`{node.name}`, in the dispatcher"
    return _Found(
        "dispatcher",
        f"The workers wait for items: the slowest step is {name}, which runs once",
        None if node is None else node.number,
        "Move costly steps behind sharding_round_robin_dispatch(), or divide with sharding_filter() instead, so that "
        "every worker does a part of them.",
    )


def _is_dispatched(stats: LoaderStats) -> bool:
    """True if this process deals what the workers make batches of: indices, from a sampler."""
    dispatched = any(node.section == "dispatch" for node in stats.nodes)
    return dispatched and not any(process.kind == "dispatcher" for process in stats.processes)


def _transport(where: str) -> _Found:
    return _Found(
        "transport",
        f"The slowest step is moving items between processes: {where}",
        None,
        "Send less, and in larger pieces: collate in the workers, send uint8 rather than float32, tensors or arrays "
        "rather than many small objects.",
    )


def _slowest(nodes: list[NodeStats], spent_s: float = 0.0) -> NodeStats | None:
    """The node that takes the most time; None if what is not measured took longer than it. All took ``spent_s``."""
    measured = [node for node in nodes if node.self_s]
    slowest = max(measured, key=lambda node: node.self_s or 0.0, default=None)
    rest_s = spent_s - sum(node.self_s or 0.0 for node in measured)
    return None if slowest is None or (slowest.self_s or 0.0) < rest_s else slowest


def _hint(stats: LoaderStats, found: _Found, outlook: Outlook, keeps_up: int | None) -> tuple[str, str]:
    """(what follows the finding in the sentence, what to change)."""
    if found.bottleneck == "consumer":
        fewer = keeps_up is not None and stats.workers > max(1, keeps_up)
        return "", f"{keeps_up} of {stats.workers} {_kind(stats)} would do." if fewer else ""
    if found.bottleneck not in ("workers", "node", "source"):
        return ".", found.change
    died = sum(process.restarts for process in stats.processes)
    if died * _REPLACED_S > _LITTLE * stats.consumer.elapsed_s:
        return (
            f"; {died} {'process has' if died == 1 else 'processes have'} died meanwhile, and what replaces "
            f"{'it' if died == 1 else 'them'} takes time too.",
            "Find out why first: events, and the logger torchpipe, have the causes.",
        )
    unmeasured = "" if found.node is not None else " loader.measuring = True names the node."
    where = "worker_method='thread'" if stats.method == "thread" else "num_workers"
    if keeps_up is not None and keeps_up > stats.workers:
        many = f"{keeps_up} worker{'s' if keeps_up > 1 else ''}"
        return f"; with {many} it would keep up.", f"Use num_workers={keeps_up}.{unmeasured}"
    if keeps_up is not None:  # with those that there are
        return (
            "; on average the workers keep up, so they or your loop are slow now and then.",
            "Let workers run further ahead (worker_prefetch_cnt=, or prefetch_factor= of a DataLoader), or make that "
            f"step cheaper.{unmeasured}",
        )
    slowest = next((node for node in stats.nodes if node.number == found.node), None)
    if slowest is not None and slowest.repeated and stats.shards > 1:
        return _repeated_hint(stats, found, unmeasured)
    more = 2 * max(1, stats.workers)
    gain = outlook.rate(more) / outlook.rate(max(1, stats.workers)) if outlook.complete else 0.0
    if gain >= _WORTH:
        return (
            f"; {more} {_kind(stats)} would make {gain:.1f} times as many items.",
            f"Use num_workers={more}, or make that step cheaper.{unmeasured}",
        )
    limit = outlook.limit
    near = _rate(stats) > _IN_USE * outlook.ceiling
    if limit == "cores" and outlook.complete and near:
        return (
            f"; all {stats.cores} cores are in use, so more workers would not help.",
            f"Make that step cheaper, do it once and store the result, or use a machine with more cores.{unmeasured}",
        )
    if limit == "once" and near:
        return _once_hint(stats, found.node, unmeasured)
    if limit == "repeated":
        return _repeated_hint(stats, found, unmeasured)
    others = ""
    if (stats.others or 0.0) > _OTHERS:
        others = " Other programs keep the machine busy, so what more workers would do cannot be told."
    return ".", f"Make that step cheaper, or raise {where}.{others}{unmeasured}"


def _repeated_hint(stats: LoaderStats, found: _Found, unmeasured: str) -> tuple[str, str]:
    read = next((node for node in stats.nodes if node.divided_by), None)
    divide = (
        f"Put {read.divided_by}() right behind `{read.name}`, in the place of sharding_filter(): each shard then reads "
        "its own part of the files alone."
        if read is not None
        else "Let a cheaper source be divided (sharding_filter() behind file names or indices, which the workers then "
        "read), or read it once: sharding_round_robin_dispatch() right behind it."
        if found.bottleneck == "source"
        else "Put sharding_filter() before it, right after the source."
    )
    return "; every shard does it for all items, so more workers would not help.", f"{divide}{unmeasured}"


def _rate(stats: LoaderStats) -> float:
    """Items a second, since the epoch began."""
    return stats.consumer.items / max(1e-9, (stats.consumer.start_s or 0.0) + stats.consumer.elapsed_s)


def _once_hint(stats: LoaderStats, slowest: int | None, unmeasured: str) -> tuple[str, str]:
    """More workers would come up against what is done once for all of them."""
    node = _slowest([node for node in stats.nodes if node.section != "shard"])
    if node is None:
        text = "; what runs once, for all of them, takes nearly as long, so more workers would not help."
    elif node.number == slowest:
        text = "; it runs once, so more workers would not help."
    else:
        text = f"; `{node.name}`, which runs once, takes nearly as long, so more workers would not help."
    return text, f"Make what runs once cheaper, or put it where every worker does a part of it.{unmeasured}"


def _kind(stats: LoaderStats) -> str:
    return "threads" if stats.method == "thread" else "workers"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _ms(seconds: float, items: int) -> str:
    return f"{1e3 * seconds / max(1, items):.3g} ms"
