"""A user's loader as a source: one epoch of any iterable, from a saved position, with snapshots of its own state.

``LoaderSource`` is made in the consumer's thread and read in the feed thread.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch

from torchpipe.errors import ReplayWarning, StateError
from torchpipe.node.iterator import is_stateful, refusing_misfits, stored_count
from torchpipe.node.traits import is_ours
from torchpipe.node.user_warnings import warn_user
from torchpipe.state import Cursor, SnapshotPolicy, decode, encode

__all__ = ["LoaderSource", "loader_start", "source_policy"]


class LoaderSource:
    """One epoch over ``loader``: a torch DataLoader, a StatefulDataLoader, a DataLoader2, any iterable.

    A loader with ``state_dict`` and ``load_state_dict`` is saved by its own state. Any other is resumed by replay: it
    is read from the epoch's start, which a :class:`ReplayWarning` announces; generators that shuffle it are put back.
    What is left of an epoch may be nothing.

    ``iter(loader)`` is called here, not in the feed thread, so that what it starts is started in the consumer's thread
    and what it raises is raised there. Snapshots are states of the loader; ``end`` is the one after the epoch.
    """

    def __init__(self, loader: Any, cursor: Cursor, *, allow_pickle: bool = False) -> None:
        self._stream: Iterator[Any] | None = None
        self._closed = False
        self._loader = loader
        self._stateful = is_stateful(loader)
        self._count = 0  # batches since the epoch's start, for a loader without state
        self._drop = cursor.skip
        self.first = False  # the batch that was yielded last is the first of this pass
        self.end: bytes | None = None
        saved = None if cursor.snapshot is None else decode(cursor.snapshot, allow_pickle=allow_pickle)
        if saved is not None:
            with refusing_misfits(type(loader).__name__):
                self._load(saved)
        self._over = saved is not None and saved.get("over") is True  # the state was taken after an epoch
        self._generators = _generator_states(loader)
        self._iterator: Iterator[Any] | None = iter(loader)
        # A StatefulDataLoader puts back the order of its epoch and not the generator that draws those of later ones.
        # With workers it does, and the generator may have drawn further than the batches that were received.
        states = saved.get("generators", []) if saved is not None and self._stateful else []
        if states and not getattr(loader, "num_workers", 0):
            with refusing_misfits(type(loader).__name__):
                _put_back(loader, states)
            if self._over:
                self._iterator = iter(loader)  # the first one has drawn the order of the next epoch already

    def _load(self, saved: dict[str, Any]) -> None:
        if self._stateful:
            self._loader.load_state_dict(saved["loader"])
            return
        _put_back(self._loader, saved["generators"])
        self._drop += stored_count(saved, "count")
        if self._drop:
            warn_user(_replay_text(self._loader, self._drop), ReplayWarning)

    def items(self) -> Iterator[Any]:
        self._stream = self._run()
        return self._stream

    def _run(self) -> Iterator[Any]:
        for done in range(self._drop):
            try:
                self._next()
            except StopIteration:
                raise StateError(
                    f"the {type(self._loader).__name__} ended after {done} of {self._drop} batches to be read again: "
                    "has the data become shorter, or the batch size larger, since the state was saved?"
                ) from None
        self.first = True
        while not self._closed:
            try:
                item = self._next()
            except StopIteration:
                self.end = self._snapshot_of_end()
                return
            yield item
            self.first = False
            del item  # the consumer alone decides how long a batch lives

    def _next(self) -> Any:
        iterator: Any = self._iterator  # it is there until close()
        over, self._over = self._over, False
        try:
            item = next(iterator)
        except StopIteration:
            if not over:
                raise
            self._iterator = iter(self._loader)  # the loader's state said no more than that nothing was left
            item = next(self._iterator)
        self._count += 1
        return item

    def _snapshot_of_end(self) -> bytes | None:
        try:
            if self._stateful:
                return encode(_stateful_start(self._loader) | {"over": True})
            return loader_start(self._loader)
        except StateError:
            return None  # the cursor of the last batch is true as well

    def state_dict(self) -> dict[str, Any]:
        if self._stateful:
            return _stateful_start(self._loader)
        return {"generators": self._generators, "count": self._count}

    def interrupt(self) -> None:
        """End a wait inside a DataLoader2; what any other loader waits for is not known here."""
        iterator = self._iterator
        if iterator is not None and is_ours(type(iterator).__module__):
            getattr(iterator, "interrupt", lambda: None)()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        stream, self._stream = self._stream, None
        iterator, self._iterator = self._iterator, None
        for part in (stream, iterator):
            close = getattr(part, "close", None)
            if close is not None:
                close()


class _Policy(SnapshotPolicy):
    """Another policy, with a snapshot at the first batch of each pass: from there on the pass is known exactly, also
    where a loader draws the order of a new epoch by chance.
    """

    def __init__(self, source: LoaderSource, policy: SnapshotPolicy) -> None:
        self._source = source
        self._policy = policy

    def due(self, items: int = 1) -> bool:
        return self._source.first or self._policy.due(items)

    def begin(self) -> None:
        self._policy.begin()

    def end(self) -> None:
        self._policy.end()


def source_policy(source: LoaderSource, policy: SnapshotPolicy, loader: Any) -> SnapshotPolicy:
    """When to take snapshots of ``source``: of a loader without state, only of its position at the start of a pass."""
    return _Policy(source, policy if is_stateful(loader) else SnapshotPolicy.never())


def loader_start(loader: Any) -> bytes:
    """The position at which the next ``iter(loader)`` begins, or where a begun one stands. Raises: StateError."""
    if is_stateful(loader):
        return encode(_stateful_start(loader))
    return encode({"generators": _generator_states(loader), "count": 0})


def _stateful_start(loader: Any) -> dict[str, Any]:
    state = _state_of(loader)  # which may begin an epoch, and draw for that
    return {"loader": state, "generators": _generator_states(loader)}


def _put_back(loader: Any, states: list[torch.Tensor]) -> None:
    for generator, state in zip(_generators(loader), states):
        generator.set_state(state)


def _state_of(loader: Any) -> Any:
    try:
        return copy.deepcopy(loader.state_dict())
    except Exception as error:
        raise StateError(
            f"state_dict() of the {type(loader).__name__} failed with {type(error).__name__}: {error}"
        ) from error


def _generators(loader: Any) -> list[torch.Generator]:
    """The generators of a torch DataLoader and of its samplers, in a fixed order, each once."""
    batches = getattr(loader, "batch_sampler", None)
    owners = (loader, getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None))
    found: list[torch.Generator] = []
    for owner in owners:
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator) and not any(generator is other for other in found):
            found.append(generator)
    return found


def _generator_states(loader: Any) -> list[torch.Tensor]:
    return [generator.get_state() for generator in _generators(loader)]


def _replay_text(loader: Any, count: int) -> str:
    name = type(loader).__name__
    text = f"{name} keeps no state: reading its first {count} batches again to resume."
    if isinstance(getattr(loader, "sampler", None), torch.utils.data.RandomSampler) and not _generators(loader):
        return (
            f"{text} It shuffles by the global random state, so these are the same batches only if torch.manual_seed() "
            f"and all that drew from it are the same: pass {name}(..., generator=torch.Generator().manual_seed(...))"
        )
    return f"{text} Use a StatefulDataLoader or a torchpipe DataLoader2 to resume at once"
