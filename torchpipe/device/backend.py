"""The interface between the pipeline and a kind of device, the options of a device stage, and its pace.

The CPU is the device that is none: batches stay where they are. Options are one set, checked where a graph is built,
for nodes, reading services and loaders. The pace, in the consumer's thread between two batches, is the one place that
calls a backend's ``sync``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Protocol, Self, TypeAlias, TypedDict, get_args, runtime_checkable

import torch

from torchpipe.ahead.feed import in_feed_thread
from torchpipe.ahead.stage import ONE_QUEUE, Mover, StageLimits
from torchpipe.node.validate import check_choice, check_count

__all__ = [
    "Backend",
    "CpuBackend",
    "DeviceKeywords",
    "DeviceOptions",
    "DevicePace",
    "OnNewShape",
    "PadTo",
    "Sync",
    "Synchronous",
    "pace_for",
]


@runtime_checkable
class Backend(Mover, Protocol):
    """Moves batches to a device: one object serves one pass at a time, from ``prepare()`` to ``close()``.

    ``prepare``, ``receive`` and ``close`` are called in the consumer's thread (``close`` at times in the feed thread),
    ``transfer`` in the feed thread, batch by batch in order; with ``transfer_threads`` above 1, in several threads at
    once. ``transfer`` must leave the batch that it gets as it is, and move all of it or raise: a part that silently
    stays behind is an error. ``sync="loader"`` and ``wait_every`` need :class:`~torchpipe.device.Synchronous`, too.
    """

    @property
    def name(self) -> str:
        """The device in a word, for errors."""

    @property
    def releases_source(self) -> bool:
        """True if the memory of a batch may be overwritten as soon as ``transfer`` has returned.

        The stage drops the batch then in any case. A backend that says False keeps what it still reads in what it
        returns.
        """


class CpuBackend:
    """Hands batches on unchanged, whatever device their tensors are on. They share their memory with the source."""

    name = "cpu"
    releases_source = False

    def prepare(self) -> None:
        return

    def transfer(self, batch: Any, /) -> Any:
        return batch

    def receive(self, moved: Any, /) -> Any:
        return moved

    def close(self) -> None:
        return

    def sync(self) -> None:
        """Nothing is recorded: all has been done when a call returns."""

    def wait(self) -> None:
        """Nothing is under way."""


Sync: TypeAlias = Literal["none", "loader"]
PadTo: TypeAlias = Sequence[int] | Mapping[Any, Sequence[int]]
OnNewShape: TypeAlias = Literal["allow", "warn", "pad", "drop", "raise"]


class DeviceKeywords(TypedDict, total=False):
    """The arguments of ``to_device`` besides ``device`` and ``prefetch``: :class:`DeviceOptions` has them."""

    host_prefetch: int
    device_prefetch_bytes: int | None
    host_prefetch_bytes: int | None
    transfer_threads: int
    dtype: torch.dtype | str | None
    convert_numpy: bool
    input_sharding: Any
    sync: Sync
    batches_per_execution: int
    wait_every: int | None
    on_new_shape: OnNewShape
    pad_value: float
    pad_to: PadTo | None


@dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    """``device=DeviceOptions("cuda", device_prefetch=4)`` of loaders and services: a device, and how batches get there.

    ``to_device`` takes the same options; docs/devices.md says when to use which.

    ``device_prefetch`` batches are on the device or on their way, besides the consumer's; ``host_prefetch`` more wait
    for that on the host. ``..._bytes`` bound the same queues by size. ``transfer_threads`` batches are moved at a time.
    ``dtype`` is what floating-point tensors are cast to before they are moved, ``convert_numpy`` makes tensors of numpy
    arrays. ``input_sharding`` is for XLA's SPMD. With ``sync="loader"`` the stage starts what the training loop has
    built, after each ``batches_per_execution`` batches; it waits for the device after each ``wait_every``.
    ``on_new_shape`` is what happens to batches that differ from the pass's first in shape or dtype; ``"pad"`` fills
    with ``pad_value``; with ``pad_to`` dimension 1 of each tensor goes up to the next of these sizes: a list for all
    tensors, or a dict of lists by the batch's keys for those under them.

    Raises: TypeError or ValueError, naming the option.
    """

    device: Any = field(kw_only=False)
    device_prefetch: int = 2
    host_prefetch: int = 0
    device_prefetch_bytes: int | None = None
    host_prefetch_bytes: int | None = None
    transfer_threads: int = 1
    dtype: torch.dtype | str | None = None
    convert_numpy: bool = False
    input_sharding: Any = None
    sync: Sync = "none"
    batches_per_execution: int = 1
    wait_every: int | None = None
    on_new_shape: OnNewShape = "allow"
    pad_value: float = 0
    pad_to: PadTo | None = None

    @classmethod
    def of(cls, form: str, device: Any, device_prefetch: int, keywords: DeviceKeywords) -> Self:
        """The options of ``form``. Raises: TypeError, as Python would of ``form`` itself, for a name that is none."""
        unknown = sorted(keywords.keys() - DeviceKeywords.__annotations__.keys())
        if unknown:
            raise TypeError(f"{form}() got an unexpected keyword argument {unknown[0]!r}")
        return cls(device, device_prefetch=device_prefetch, **keywords)

    @classmethod
    def given(cls, device: Any) -> DeviceOptions | None:
        """The options that an argument ``device`` stands for; None: no stage. Raises: ValueError for nothing ahead."""
        if device is None:
            return None
        options = device if isinstance(device, DeviceOptions) else cls(device)
        if not options.device_prefetch:
            raise ValueError(
                "device_prefetch must be at least 1 here: to_device(prefetch=0) moves batches without a thread"
            )
        return options

    def changed(self) -> list[str]:
        """The names of the options that are not as they are by default."""
        return [option.name for option in fields(self)[1:] if getattr(self, option.name) != option.default]

    def __post_init__(self) -> None:
        for name, least in (("device_prefetch", 0), ("host_prefetch", 0), ("transfer_threads", 1)):
            object.__setattr__(self, name, check_count(name, getattr(self, name), at_least=least))
        for name in ("batches_per_execution", "device_prefetch_bytes", "host_prefetch_bytes", "wait_every"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, check_count(name, getattr(self, name), at_least=1))
        object.__setattr__(self, "dtype", _float_dtype(self.dtype))
        check_choice("sync", self.sync, get_args(Sync))
        check_choice("on_new_shape", self.on_new_shape, get_args(OnNewShape))
        if not isinstance(self.convert_numpy, bool):
            raise TypeError(f"convert_numpy must be True or False, got {self.convert_numpy!r}")
        if isinstance(self.pad_value, bool) or not isinstance(self.pad_value, int | float):
            raise TypeError(f"pad_value must be a number, got {self.pad_value!r}")
        object.__setattr__(self, "pad_to", _ascending(self.pad_to))
        self._check_combinations()

    def _check_combinations(self) -> None:
        if self.device_prefetch == 0 and self.limits != ONE_QUEUE:
            raise ValueError(
                "with device_prefetch=0 each batch is moved when it is asked for, without a thread: "
                "host_prefetch, transfer_threads and the bytes have no meaning then. Let at least 1 be ahead"
            )
        if self.host_prefetch_bytes is not None and not self.host_prefetch:
            raise ValueError(
                f"host_prefetch_bytes={self.host_prefetch_bytes} bounds a queue that is not there: set host_prefetch "
                "to the number of batches that may wait in it"
            )
        if self.pad_to is not None and self.on_new_shape != "pad":
            raise ValueError(
                f"pad_to={self.pad_to!r} needs on_new_shape='pad': the other dimensions are filled up to those of the "
                "first batch, so that as few shapes occur as pad_to has sizes"
            )
        if self.sync == "none" and self.batches_per_execution != 1:
            raise ValueError(
                f"batches_per_execution={self.batches_per_execution} needs sync='loader': with sync='none' the "
                "training loop decides when to call torch_xla.sync()"
            )
        if self.wait_every is not None and self.wait_every % self.batches_per_execution:
            raise ValueError(
                f"wait_every={self.wait_every} must be a multiple of batches_per_execution="
                f"{self.batches_per_execution}: in between, the device has not been given the work to wait for"
            )

    @property
    def limits(self) -> StageLimits:
        return StageLimits(
            host_depth=self.host_prefetch,
            host_bytes=self.host_prefetch_bytes,
            device_bytes=self.device_prefetch_bytes,
            threads=self.transfer_threads,
        )


def _float_dtype(value: object) -> torch.dtype | None:
    if value is None:
        return None
    dtype = getattr(torch, value, None) if isinstance(value, str) else value
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"dtype must be a torch.dtype or the name of one, such as 'bfloat16', got {value!r}")
    if not dtype.is_floating_point:
        raise ValueError(
            f"dtype is what floating-point tensors are cast to, and {dtype} is none: cast other tensors in a map() "
            "before to_device()"
        )
    return dtype


def _ascending(value: object) -> tuple[int, ...] | dict[Any, tuple[int, ...]] | None:
    if value is None:
        return None
    if isinstance(value, Mapping):
        return {key: _sizes(sizes) for key, sizes in value.items()}
    return _sizes(value)


def _sizes(value: object) -> tuple[int, ...]:
    sizes = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else ()
    whole = all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes)
    if not sizes or not whole or list(sizes) != sorted(set(sizes)):
        raise ValueError(
            "pad_to must be the sizes that may occur, ascending, such as [128, 256, 512], or a dict of such lists by "
            f"the keys of the batch; got {value!r}"
        )
    return sizes


@runtime_checkable
class Synchronous(Protocol):
    """The methods that ``sync="loader"`` and ``wait_every`` need of a backend."""

    def sync(self) -> None:
        """Start the work that the consumer's thread has recorded for the device; do not wait for it."""

    def wait(self) -> None:
        """Wait until the device has done all work that was started."""


class DevicePace:
    """Starts the work of each ``group`` batches together, once the consumer is done with the last of them.

    So all groups are equal and compile once; the end of the stream starts what is left over. With ``wait_every`` the
    consumer waits for the device after every so many batches: a loop that never reads a result back would otherwise
    run ahead of the device without a bound.
    """

    def __init__(self, backend: Synchronous, *, sync: bool, group: int, wait_every: int | None) -> None:
        self.syncs = 0
        self.waits = 0
        self._backend = backend
        self._group = group if sync else 0
        self._wait_every = wait_every
        self._steps = 0

    def begin(self) -> None:
        if in_feed_thread():
            raise RuntimeError(
                "the device stage with sync='loader' or wait_every is read by a thread that runs ahead, which would "
                "start the work of a training step that is only half recorded: put to_device() after prefetch(), not "
                "before it, and use no prefetch_cnt"
            )

    def returned(self) -> None:
        self._steps += 1
        if self._group and self._steps % self._group == 0:
            self._sync()
        if self._wait_every and self._steps % self._wait_every == 0:
            self._backend.wait()
            self.waits += 1

    def ended(self) -> None:
        if self._group and self._steps % self._group:
            self._sync()

    def _sync(self) -> None:
        self._backend.sync()
        self.syncs += 1


def pace_for(backend: Backend, options: DeviceOptions) -> DevicePace | None:
    """The pace that tells ``backend`` when to work; None if ``options`` do not ask for one."""
    if options.sync == "none" and options.wait_every is None:
        return None
    assert isinstance(backend, Synchronous)  # resolve() has seen to it
    return DevicePace(
        backend, sync=options.sync == "loader", group=options.batches_per_execution, wait_every=options.wait_every
    )
