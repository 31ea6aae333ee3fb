"""``SeveralDevices``: one loader feeds several devices of this process, with one checkpoint for all of them.

Runs in the consumer's process.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Literal, Self

import torch

from torchpipe.ahead.background import FeedStats, RunAhead
from torchpipe.ahead.stage import Stage
from torchpipe.device import Backend, resolve
from torchpipe.errors import IteratorInvalidated, StateError, StateMismatchError
from torchpipe.node.iterator import is_stateful, refusing_misfits, stored_count
from torchpipe.node.opaque_warnings import OpaqueWarnings
from torchpipe.node.validate import check_count
from torchpipe.state import Cursor, SnapshotPolicy, decode, encode
from torchpipe.xla.deal import DevicesEpoch, DeviceShare, DevicesPosition, Tail
from torchpipe.xla.loader_source import LoaderSource, loader_start, source_policy

__all__ = ["DeviceStream", "SeveralDevices"]

STATE_VERSION = 2

_log = logging.getLogger("torchpipe")


class DeviceStream(Iterator[Any]):
    """One device's batches of one epoch. Use it in one thread; those of other devices may be used in others.

    Raises the loader's errors at their place, and IteratorInvalidated if it was closed or replaced before its end.
    """

    def __init__(self, deal: DevicesEpoch, index: int, mover: Backend, depth: int, name: str) -> None:
        stage = Stage(depth=depth, mover=mover)
        self._ahead = RunAhead(
            DeviceShare(deal, index), stage, SnapshotPolicy.never(), name
        )  # the deal keeps the position
        self._items: Iterator[Any] | None = None
        self._deal = deal
        self._index = index
        self._closed = False
        self._ended = False
        weakref.finalize(self, deal.leave, index).atexit = False

    def __next__(self) -> Any:
        if self._ended:
            raise StopIteration
        if self._closed:
            raise self._invalid()
        try:
            if self._items is None:
                self._items = self._ahead.items()  # makes the device ready, in the consumer's thread
            batch = next(self._items)
        except StopIteration:
            if self._closed:
                raise self._invalid() from None
            self._ended = True
            self._deal.ended(self._index)
            self.close()
            raise
        except BaseException:
            self._ended = True
            self._deal.leave(self._index)  # the error that the deal keeps for the others leads here
            raise
        self._deal.received(self._index)
        return batch

    def _invalid(self) -> IteratorInvalidated:
        return IteratorInvalidated(
            f"this iterator of device {self._index} was closed, or replaced by a new epoch or by load_state_dict(), "
            "before it had ended: take the new one"
        )

    def stats(self) -> FeedStats:
        """The pace of the transfer and of the consumer so far."""
        return self._ahead.stats()

    def interrupt(self) -> None:
        """End the stream, also for a ``next`` that waits in another thread. Does not wait. Thread-safe."""
        self._closed = True
        self._ahead.interrupt()

    def close(self) -> None:
        """End the thread of this device; the others go on. Idempotent. Waits at most 5 s."""
        self._closed = True
        self._ahead.close()
        self._deal.leave(self._index)
        self._deal.close_if_left()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class SeveralDevices:
    """Feeds ``devices`` from one ``loader``: batch i goes to ``devices[i % n]``, in order.

    ``loader`` is any iterable whose ``iter()`` is an epoch: a torch DataLoader, a StatefulDataLoader, a DataLoader2.
    Each :meth:`epoch` gives one iterator a device. They may be drained in any order, in one thread or in one each:
    while one is read further than the others, what it does not want waits on the host (a warning says so).

    Args:
        devices: names, torch.devices or :class:`~torchpipe.device.Backend` objects, each once.
        host_prefetch: batches for each device that are read ahead on the host, in a thread; 0 for no such thread.
        device_prefetch: batches that are on each device, or on their way, ahead of its consumer; 0: none, no thread.
        tail: when the last batches are too few for all devices: ``"drop"`` them; ``"pad"``: the devices without one
            get the last one again; ``"raise"``: ValueError for all, after the last batch that all have.
        policy: how often the loader's own state is taken; the default costs about 1 % of the time.

    State: what the consumers received, for each device, and no more. It loads with the same number of devices; taken
    where all devices had equally many batches, with any number. Use this object itself from one thread.

    Raises: TypeError and ValueError for arguments that do not fit; ImportError if torch_xla is needed and missing.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        devices: Iterable[str | torch.device | Backend],
        *,
        host_prefetch: int = 2,
        device_prefetch: int = 2,
        tail: Literal["drop", "pad", "raise"] = "drop",
        policy: Callable[[], SnapshotPolicy] = SnapshotPolicy,
    ) -> None:
        self.loader = loader
        self.devices = _check_devices(devices)
        self._host_prefetch = check_count("host_prefetch", host_prefetch, at_least=0)
        self._device_prefetch = check_count("device_prefetch", device_prefetch, at_least=0)
        if tail not in [item.value for item in Tail]:
            raise ValueError(f'tail must be "drop", "pad" or "raise", got {tail!r}')
        self._tail = Tail(tail)
        if not callable(policy):
            raise TypeError(f"policy must be a function that makes a SnapshotPolicy, got {policy!r}")
        self._make_policy = policy
        self._loaded: tuple[DevicesPosition, bool] | None = (
            None  # where the next epoch() is to go on, and if it may unpickle
        )
        self._deal: DevicesEpoch | None = None
        self._opaque = OpaqueWarnings()
        # Weakly: whoever drops the streams ends their threads, and the position stays here.
        self._streams: weakref.WeakSet[DeviceStream] = weakref.WeakSet()

    def per_device_samples(self) -> int:
        """The number of batches that each device gets in an epoch. Raises: TypeError if the loader has no length."""
        batches, devices = len(self.loader), len(self.devices)  # type: ignore[arg-type]
        return -(-batches // devices) if self._tail is Tail.PAD else batches // devices

    def epoch(self) -> tuple[DeviceStream, ...]:
        """The next epoch, or the rest of the one that was loaded: one iterator a device. Ends those of the last one.

        ``iter(loader)`` is called here. The threads start with the first ``next``.
        """
        self._retire()
        count = len(self.devices)
        start, allow_pickle = self._loaded or (DevicesPosition(Cursor(), 0, (0,) * count), False)
        source = LoaderSource(self.loader, start.cursor, allow_pickle=allow_pickle)
        cursor = start.cursor if start.cursor.snapshot is not None else Cursor(_start_of(source))
        start = replace(start, cursor=cursor)
        host = RunAhead(
            source,
            Stage(depth=self._host_prefetch * count),
            source_policy(source, self._make_policy(), self.loader),
            f"{type(self.loader).__name__} for {count} device{'s' if count > 1 else ''}",
        )
        host.cursor = cursor
        deal = DevicesEpoch(
            source,
            host,
            start,
            self._tail,
            threaded=self._host_prefetch > 0,
            report_at=max(8, 4 * self._device_prefetch),
        )
        streams = tuple(
            DeviceStream(deal, index, resolve(device), self._device_prefetch, f"device {_name(device)}")
            for index, device in enumerate(self.devices)
        )
        self._deal, self._loaded = deal, None
        self._streams = weakref.WeakSet(streams)
        return streams

    def waiting(self) -> list[int]:
        """The number of batches that wait on the host for each device, because others were read further."""
        return [0] * len(self.devices) if self._deal is None else self._deal.waiting()

    def state_dict(self) -> dict[str, Any]:
        """The position after what the consumers received; asks nobody and stops nothing.

        Keys: version, devices, delivered (batches of the epoch so far, of all devices) and payload (bytes).

        Raises: StateError if the loader's own state cannot be saved.
        """
        position = self._position()
        if position.cursor.snapshot is None:
            snapshot = loader_start(self.loader)
            if self._deal is not None:
                raise StateError(
                    f"the state of the {type(self.loader).__name__} could not be saved when this epoch began, see the "
                    "warning given then; it can now, from the next epoch on"
                )
            position = replace(position, cursor=Cursor(snapshot))
        state = self._state(position)
        self._opaque.tell(state["payload"])
        return state

    def _state(self, position: DevicesPosition) -> dict[str, Any]:
        return {
            "version": STATE_VERSION,
            "devices": len(self.devices),
            "delivered": position.delivered,
            "payload": encode(
                {
                    "stateful": is_stateful(self.loader),
                    "loader": type(self.loader).__name__,
                    "cursor": position.cursor,
                    "groups": position.groups,
                    "ahead": list(position.ahead),
                    "over": position.over,
                    "earlier": position.earlier,
                    "batches": position.batches,
                }
            ),
        }

    def _position(self) -> DevicesPosition:
        if self._loaded is not None:
            return self._loaded[0]
        if self._deal is not None:
            return self._deal.position()
        return DevicesPosition(Cursor(), 0, (0,) * len(self.devices))

    def load_state_dict(self, state_dict: dict[str, Any], *, allow_pickle: bool = False) -> None:
        """Let the next :meth:`epoch` go on after what ``state_dict`` says was received. Ends a live epoch.

        Raises: StateMismatchError if it was saved with other devices, or over a loader of another kind; StateError if
        it is damaged. Nothing is changed then.
        """
        position = _read_state(state_dict, self.loader, len(self.devices), allow_pickle)
        self._retire()
        self._deal = None
        self._loaded = (position, allow_pickle)

    def close(self) -> None:
        """End the threads of a live epoch. ``state_dict`` still answers. Idempotent. The loader stays the user's."""
        self._retire()

    def _retire(self) -> None:
        streams = list(self._streams)
        self._streams = weakref.WeakSet()
        for stream in streams:
            if not stream._ended:
                stream.interrupt()
        for stream in streams:
            stream.close()
        if self._deal is not None:
            self._deal.close()  # nobody may read the loader any more when it is iterated anew

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _check_devices(devices: Iterable[str | torch.device | Backend]) -> tuple[str | torch.device | Backend, ...]:
    if isinstance(devices, str) or not isinstance(devices, Iterable):
        raise TypeError(f"devices must be a list of devices, got {devices!r}: write [{devices!r}] for a single one")
    chosen = tuple(devices)
    if not chosen:
        raise ValueError("devices must name at least one device, got none")
    for device in chosen:
        resolve(device)  # complain now, where the mistake is
    named = [torch.device(device) if isinstance(device, str) else device for device in chosen]
    for index, device in enumerate(named):
        if isinstance(device, torch.device) and device.type != "cpu" and device in named[:index]:
            raise ValueError(f"devices has {device} twice: each device has one iterator, so name it once")
    return chosen


def _name(device: str | torch.device | Backend) -> str:
    return str(device) if isinstance(device, str | torch.device) else device.name


def _start_of(source: LoaderSource) -> bytes | None:
    """After ``iter(loader)``: before it, a loader may still stand in an epoch that was given up."""
    try:
        return encode(source.state_dict())
    except StateError as error:
        _log.warning("no state can be saved of this epoch: %s", error)
        return None


def _read_state(state: Any, loader: Any, devices: int, allow_pickle: bool) -> DevicesPosition:
    keys = {"version", "devices", "delivered", "payload"}
    if not isinstance(state, dict) or not keys <= state.keys():
        found = ", ".join(map(str, state))[:200] if isinstance(state, dict) else type(state).__name__
        raise StateError(
            f"not a state of a device loader: it needs {', '.join(sorted(keys))}, got {found}. The wrapped loader's "
            "own state goes to the wrapped loader's load_state_dict()"
        )
    if state["version"] != STATE_VERSION:
        raise StateMismatchError(
            f"the state has version {state['version']!r}, this torchpipe reads version {STATE_VERSION}: load it with "
            "the version of torchpipe that wrote it"
        )
    payload = decode(state["payload"], allow_pickle=allow_pickle)
    with refusing_misfits("a device loader"):
        position = DevicesPosition(
            payload["cursor"],
            stored_count(payload, "groups"),
            tuple(payload["ahead"]),
            over=payload["over"],
            earlier=stored_count(payload, "earlier"),
            batches=None if payload.get("batches") is None else stored_count(payload, "batches"),
        )
        stateful, saved_over = payload["stateful"], payload["loader"]
        sound = type(position.cursor) is Cursor and position.cursor.snapshot is not None
        if not (sound and position.ahead and {type(part) for part in position.ahead} == {int}):
            raise ValueError(f"no position: {position!r:.80}")
        saved = (state["devices"], state["delivered"])
        if saved != (len(position.ahead), position.delivered) or min(position.ahead) != 0:
            raise ValueError(f"devices and delivered are {saved!r:.80}, but its payload belongs to others")
    if stateful != is_stateful(loader):
        raise StateMismatchError(
            f"the state was saved over a {saved_over} with{'' if stateful else 'out'} state_dict(), this loader is a "
            f"{type(loader).__name__} with{'out' if stateful else ''} one: load it over a loader of the same kind"
        )
    if len(position.ahead) == devices:
        return position
    if any(position.ahead):
        raise StateMismatchError(
            f"the state was saved with {len(position.ahead)} devices, which had received "
            f"{[position.groups + more for more in position.ahead]} batches, and this loader has {devices}: only a "
            "state that was taken when all had equally many loads with another number of devices"
        )
    return DevicesPosition(position.cursor, 0, (0,) * devices, over=position.over, earlier=position.delivered)
