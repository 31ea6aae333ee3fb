"""Going to a step of an epoch by its order alone, beside the loader's own loop: for ``rows`` and ``item_at``.

Runs in the user's process. Samplers are copied, and draw from copies of the process's random states.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from torchpipe.compat.torch_private import gives_batches
from torchpipe.data.batches import LocalFailure
from torchpipe.data.fetch import Fetch, make_worker_info, set_worker_info
from torchpipe.data.loader import DataLoader
from torchpipe.data.order.samplers import Samplers
from torchpipe.data.order.sampling import Order, OrderState, begin_order
from torchpipe.data.position import Position
from torchpipe.data.ranks.batches import order_at
from torchpipe.errors import StateError
from torchpipe.loader.epochs import Fresh
from torchpipe.loader.observing import AskedSteps
from torchpipe.node.iterator import is_stateful
from torchpipe.observe.steps.rows import Rows, row_of, wanted_steps
from torchpipe.randomness.global_random import BatchRandom, GlobalRandom, RandomStates
from torchpipe.state.copying import beside_the_loop

__all__ = ["item_at", "rows_of"]


def rows_of(
    loader: DataLoader[Any], position: Position, steps: AskedSteps, keep: Sequence[str], epoch: int | None
) -> Rows:
    """The indices of the samples of ``steps``."""
    if keep:
        raise ValueError(f"keep={keep}: the rows of a DataLoader are indices of its dataset, which is not read")
    wanted = wanted_steps(steps)
    random = GlobalRandom.at(RandomStates.now())
    first = 0 if wanted is None else wanted[0] if len(wanted) else 0
    order = random.within(partial(_order, loader, position, epoch, first))
    batched = gives_batches(loader)
    return Rows(
        wanted,
        order.number,
        lambda _: _each(order, random),
        lambda indices: [row_of(index, ()) for index in (indices if batched else [indices])],
    )


def item_at(loader: DataLoader[Any], position: Position, step: int, epoch: int | None) -> Any:
    """The batch of ``step``. Raises: IndexError if the epoch has none; what making it raises."""
    if loader._must_make:
        raise TypeError(
            "a batch of an iterable dataset, of one with a state_dict, or under worker_seeding='torch' depends on "
            "those before it: load a state from before it, loader.skip() to it, and take the next batch"
        )
    random = GlobalRandom.at(RandomStates.now())
    order = random.within(partial(_order, loader, position, epoch, step))
    order.makes_lists = loader.fetch == "samples"
    for indices in _each(order, random):
        if order.number == step + 1:
            make = partial(_made, loader, order, position.epoch if epoch is None else epoch, step, indices)
            return random.within(make)
    raise IndexError(f"this epoch has no step {step} on this rank: it ends before step {order.number}")


def _made(loader: DataLoader[Any], order: Order, epoch: int, step: int, indices: Any) -> Any:
    """The batch as the worker in turn makes it."""
    dataset, collate_fn = beside_the_loop((loader._plain_dataset(), loader.collate_fn))
    by_sample = loader.fetch == "samples"
    fetch = Fetch(dataset, gives_batches(loader), collate_fn, by_sample=by_sample)
    with _as_worker(loader, order.base_seed, step, dataset):
        try:
            make = partial(fetch, indices)
            return BatchRandom(fetch.own_generators()).within(
                order.base_seed, epoch, order.key(step), make, by_sample=by_sample
            )
        except Exception as error:
            fetch.explain(error, step, indices)
            raise LocalFailure(error).error from error.__cause__


@contextmanager
def _as_worker(loader: DataLoader[Any], base_seed: int, step: int, dataset: Any) -> Iterator[None]:
    """Act as the worker whose turn ``step`` is, if the loader has workers."""
    if not loader.num_workers:
        yield
        return
    worker = step % loader.num_workers
    outside = set_worker_info(make_worker_info(worker, loader.num_workers, base_seed + worker, dataset))
    try:
        if loader.worker_init_fn is not None:
            loader.worker_init_fn(worker)
        yield
    finally:
        set_worker_info(outside)


def _each(order: Order, random: GlobalRandom) -> Iterator[Any]:
    while True:
        try:
            indices = random.within(order.__next__)
        except StopIteration:
            return
        yield indices


def _order(loader: DataLoader[Any], position: Position, epoch: int | None, first: int) -> Order:
    """The order before batch ``first`` or an earlier one."""
    if loader._is_iterable:
        raise TypeError(
            "the samples of an iterable dataset have no indices: let them carry an id, or use a graph of nodes "
            "in DataLoader2, which says what its sources give"
        )
    if loader.distributed:
        return order_at(loader, position, position.epoch if epoch is None else epoch, first)
    if epoch not in (None, position.epoch):
        raise StateError(
            f"the position is of epoch {position.epoch}, and the order of epoch {epoch} is drawn from generators when "
            "that begins, wherever they then stand: load a state of that epoch. Orders of "
            "DataLoader(distributed=True) are known for every epoch"
        )
    samplers = loader._samplers.copied()
    if samplers.owner is None and any(map(is_stateful, samplers.parts)):
        raise StateError(
            "a sampler within another one has a state of its own, which the outer one leads on: what it gives is not "
            "known beside the loop. Load the state, and loader.skip() to the step"
        )
    if position.now is not None:
        samplers.put_now(position.now)
    if position.order is not None and (first >= position.delivered or "start" not in position.order):
        return begin_order(samplers, saved=(position.order, min(first, position.delivered)))
    if position.order is not None:
        return _begun_again(loader, samplers, position.order)
    coming = loader._epochs.coming
    if isinstance(coming, Fresh) and not coming.announced:
        samplers.tell_epochs([coming.epoch if known is not None else None for known in samplers.given_epochs()])
    return loader._coming_order(samplers)


def _begun_again(loader: DataLoader[Any], samplers: Samplers, order: OrderState) -> Order:
    """From its first batch. Raises: StateError if its state does not say how it began, or the sampler gives other
    batches now than those of which the state has a digest.
    """
    start = order["start"]
    if "sampler" in order:
        raise StateError(
            "the sampler has a state of its own, which says where it stands, not where the epoch began: ask for "
            "steps from there on, or load an earlier state"
        )
    if "asked" in order:  # with copies of their own: it runs to where the run had come, and compares
        begin_order(loader._samplers.copied(), saved=(order, order["asked"]))
    samplers.put(start, epochs=True)
    base_seed = None if start.get("drew") else order["base_seed"]
    return begin_order(samplers, base_seed=base_seed, loaded=start.get("loaded") is True)
