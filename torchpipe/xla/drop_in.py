"""``ParallelLoader``, ``PerDeviceLoader`` and ``MpDeviceLoader`` with torch_xla's signatures, and with a state.

Runs in the consumer's process. Importing this module imports torch_xla where that is installed: the three classes
derive from torch_xla's own then, since frameworks test for these by ``isinstance``. None of its code runs in them.
"""

from __future__ import annotations

import importlib.util
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Literal, Self

import torch

from torchpipe.device import Backend
from torchpipe.device.xla import XlaBackend
from torchpipe.node.validate import check_count
from torchpipe.state import SnapshotPolicy
from torchpipe.xla.several_devices import DeviceStream, SeveralDevices

__all__ = ["MpDeviceLoader", "ParallelLoader", "PerDeviceLoader"]


def _torch_xlas(name: str) -> Any:
    """The class that torch_xla has under ``name``; ``object`` where there is no torch_xla. Raises: ImportError."""
    if importlib.util.find_spec("torch_xla") is None:
        return object
    try:
        import torch_xla.distributed.parallel_loader as original
    except ImportError as error:
        raise ImportError(
            f"torch_xla is installed but cannot be imported beside torch {torch.__version__}: {error}. Install "
            "matching versions, torch_xla 2.9 with torch 2.9, or remove it",
            name="torch_xla",
        ) from error
    return getattr(original, name)


class ParallelLoader(_torch_xlas("ParallelLoader")):  # type: ignore[misc]
    """Feeds ``devices`` from ``cpu_loader``, batch i to ``devices[i % n]``: one pass, one iterator a device.

    As torch_xla's, but: batches keep their types and order, errors are raised at their place, devices may be drained in
    any order, nothing starts before the first batch is asked for, :meth:`close` does not wait for ever, and there is a
    state. ``SeveralDevices`` does the work.

    Args:
        batchdim: not used (nor by torch_xla).
        batches_per_execution: with XLA, ``torch_xla.sync()`` is called before every so many batches and at the end;
            groups are equal from the first on.
        loader_prefetch_size: batches for each device that are read ahead on the host.
        device_prefetch_size: batches that are moved ahead to each device, one by one.
        host_to_device_transfer_threads: one thread moves the batches of a device in any case, in their order.
        input_sharding: passed on to the XLA backend.
        tail, policy: as for ``SeveralDevices``.

    Raises: TypeError and ValueError for arguments that do not fit; ImportError if torch_xla is needed and missing.
    """

    def __init__(
        self,
        cpu_loader: Iterable[Any],
        devices: Iterable[str | torch.device | Backend],
        batchdim: int = 0,
        batches_per_execution: int = 1,
        loader_prefetch_size: int = 16,
        device_prefetch_size: int = 8,
        host_to_device_transfer_threads: int = 1,
        input_sharding: Any = None,
        *,
        tail: Literal["drop", "pad", "raise"] = "drop",
        policy: Callable[[], SnapshotPolicy] = SnapshotPolicy,
    ) -> None:
        # torch_xla's constructor, which starts threads, is left out on purpose.
        _ = check_count(
            "host_to_device_transfer_threads", host_to_device_transfer_threads, at_least=1
        )  # has no meaning
        self._batches_per_execution = check_count("batches_per_execution", batches_per_execution, at_least=1)
        self._cpu_loader = cpu_loader
        self._batchdim = batchdim
        self._input_sharding = input_sharding
        devices = devices if isinstance(devices, str) else list(devices)  # a string is refused below
        self._several = SeveralDevices(
            cpu_loader,
            devices if input_sharding is None else [_with_sharding(device, input_sharding) for device in devices],
            host_prefetch=check_count("loader_prefetch_size", loader_prefetch_size, at_least=0),
            device_prefetch=check_count("device_prefetch_size", device_prefetch_size, at_least=0),
            tail=tail,
            policy=policy,
        )
        self._devices = [_normal(device) for device in devices]
        self._streams: tuple[DeviceStream, ...] | None = None
        self._starting = threading.Lock()

    @property
    def batches_per_execution(self) -> int:
        return self._batches_per_execution

    def per_device_loader(self, device: str | torch.device | Backend) -> PerDeviceLoader:
        """The iterator for ``device``; a second one for the same device goes on where the first one stands.

        Raises: ValueError if it is none of the devices; what ``iter(cpu_loader)`` raises.
        """
        self._stream(device)
        return PerDeviceLoader(self, device)

    def per_device_samples(self) -> int:
        """The number of batches that each device gets. Raises: TypeError if the loader has no length."""
        return self._several.per_device_samples()

    def next_item(self, device: str | torch.device | Backend) -> Any:
        """The next batch of ``device``, or None at the end, as torch_xla's: iterate where None may be a batch."""
        return next(self._stream(device), None)

    def _stream(self, device: str | torch.device | Backend) -> DeviceStream:
        index = self._index(device)
        with self._starting:  # consumers may have a thread for each device
            if self._streams is None:
                self._streams = self._several.epoch()
            return self._streams[index]

    def _index(self, device: str | torch.device | Backend) -> int:
        wanted = _normal(device)
        for index, candidate in enumerate(self._devices):
            if candidate is wanted or (isinstance(wanted, torch.device) and candidate == wanted):
                return index
        raise ValueError(
            f"this loader feeds {', '.join(map(str, self._devices))}, not {device!r}: ask for one of these"
        )

    def state_dict(self) -> dict[str, Any]:
        """The position after what the consumers received, on every device. See ``SeveralDevices.state_dict``."""
        return self._several.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any], *, allow_pickle: bool = False) -> None:
        """Go on after what ``state_dict`` says was received; take new per-device loaders then."""
        self._several.load_state_dict(state_dict, allow_pickle=allow_pickle)
        self._streams = None

    def close(self) -> None:
        """End all threads. Idempotent; waits a few seconds for a loader that does not return."""
        self._several.close()


class PerDeviceLoader(_torch_xlas("PerDeviceLoader")):  # type: ignore[misc]
    """One device's batches of a ``ParallelLoader``. With XLA it calls ``torch_xla.sync()``, as torch_xla's does."""

    def __init__(self, loader: ParallelLoader, device: str | torch.device | Backend) -> None:
        if not isinstance(loader, ParallelLoader):
            raise TypeError(
                f"PerDeviceLoader needs a torchpipe ParallelLoader, got {type(loader).__module__}."
                f"{type(loader).__name__}: use loader.per_device_loader(device)"
            )
        self._loader = loader
        self._device = device
        self._stream = loader._stream(device)
        self._yielded = 0
        normal = _normal(device)
        self._on_xla = normal.type == "xla" if isinstance(normal, torch.device) else normal.name == "xla"

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return self.next()

    def __len__(self) -> int:
        return self._loader.per_device_samples()

    def next(self) -> Any:
        """The next batch, after a sync where one is due. Raises: StopIteration; the loader's errors."""
        if self._on_xla:
            self._sync_if_due()
        try:
            batch = next(self._stream)
        except StopIteration:
            if self._on_xla:
                _sync()
            raise
        self._yielded += 1
        return batch

    def _sync_if_due(self) -> None:
        import torch_xla.debug.profiler as xp

        profiler: Any = xp
        if profiler.get_tracer_marked_step():  # a StepTrace around the step has just called it
            profiler.set_tracer_marked_step(False)
        elif self._yielded % self._loader.batches_per_execution == 0:
            _sync()


class MpDeviceLoader(_torch_xlas("MpDeviceLoader")):  # type: ignore[misc]
    """Wraps ``loader`` so that each ``iter()`` is an epoch whose batches arrive on ``device``, moved ahead.

    ``loader`` is any iterable with an epoch for each ``iter()``: a torch DataLoader, a StatefulDataLoader, a
    DataLoader2. ``kwargs`` are those of :class:`ParallelLoader`; they are read anew from ``_parallel_loader_kwargs`` at
    each ``iter()``, since frameworks change them there.

    State: what the ``for`` loop received: nothing that was read or moved ahead is lost or repeated. It has the rest of
    the epoch, which is empty behind its last batch; after the loop, it is the start of the next one. A loader without a
    state of its own is read again from the epoch's start, which a ReplayWarning announces. Save this state instead of
    the wrapped loader's.

    Raises: TypeError and ValueError for arguments that do not fit; ImportError if torch_xla is needed and missing.
    """

    def __init__(self, loader: Iterable[Any], device: str | torch.device | Backend, **kwargs: Any) -> None:
        self._loader = loader
        self._device = device
        self._parallel_loader_kwargs = kwargs
        self._loaded: tuple[dict[str, Any], bool] | None = None  # for the next iter(), and if it may unpickle
        self._position: SeveralDevices = self._make()._several  # complains now of what does not fit
        # Weakly: a loop that is left by break ends its threads; the position stays here.
        self._current: weakref.ref[ParallelLoader] | None = None

    def _make(self) -> ParallelLoader:
        return ParallelLoader(self._loader, [self._device], **self._parallel_loader_kwargs)

    @property
    def _parallel_loader(self) -> ParallelLoader | None:
        return None if self._current is None else self._current()

    def __iter__(self) -> PerDeviceLoader:
        self._position.close()
        fresh = self._make()
        if self._loaded is not None:
            state, allow_pickle = self._loaded
            fresh.load_state_dict(state, allow_pickle=allow_pickle)
        batches = fresh.per_device_loader(self._device)
        self._position, self._current, self._loaded = fresh._several, weakref.ref(fresh), None
        return batches

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch that was received. See ``SeveralDevices.state_dict``."""
        return dict(self._loaded[0]) if self._loaded is not None else self._position.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any], *, allow_pickle: bool = False) -> None:
        """Let the next ``iter()`` go on after what ``state_dict`` says was received; a live one is invalid then.

        Raises: StateMismatchError and StateError for what does not fit. Nothing is changed then.
        """
        self._make().load_state_dict(state_dict, allow_pickle=allow_pickle)
        self._position.close()
        self._loaded = (dict(state_dict), allow_pickle)

    def close(self) -> None:
        """End the threads of a live epoch. Idempotent. ``state_dict`` still answers."""
        self._position.close()


def _sync() -> None:
    import torch_xla

    torch_xla.sync()


def _normal(device: str | torch.device | Backend) -> torch.device | Backend:
    return torch.device(device) if isinstance(device, str) else device


def _with_sharding(device: str | torch.device | Backend, input_sharding: Any) -> str | torch.device | Backend:
    """The one place where ``input_sharding`` goes on to a backend."""
    wanted = _normal(device)
    if not isinstance(wanted, torch.device) or wanted.type != "xla":
        raise ValueError(f"input_sharding is for XLA devices, got it for {device!r}: give it to the backend itself")
    return XlaBackend(wanted.index, input_sharding=input_sharding)
