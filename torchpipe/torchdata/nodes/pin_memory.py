"""``pin_memory``: tensors in page-locked memory, which move to a GPU quicker. Runs in the main process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from torchpipe.iter._shared.bases import OnePerItem, form_on
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.validate import check_function, check_input
from torchpipe.utils import pin_memory_fn

__all__ = ["PinMemory"]

T = TypeVar("T")


@functional_datapipe("pin_memory")
class PinMemory(IterDataPipe[T]):
    """Puts each item through ``pin_memory_fn(item, device)``, up to two items ahead where it runs in a thread.

    ``device`` is the GPU that they are for, by default the current one. ``to_device`` does this and the rest of the
    way.

    State: as that of ``prefetch``, which it ends with. Raises: RuntimeError without CUDA; TypeError if
    ``pin_memory_fn`` is no function.
    """

    def __new__(  # type: ignore[misc]
        cls,
        source_datapipe: IterDataPipe[T],
        device: Any = None,
        pin_memory_fn: Callable[[Any, Any], Any] = pin_memory_fn,
    ) -> IterDataPipe[T]:
        check_input("pin_memory", source_datapipe)
        check_function("pin_memory_fn", pin_memory_fn)
        if not torch.cuda.is_available():
            raise RuntimeError("``pin_memory`` can only be used when CUDA is available.")
        device = torch.cuda.current_device() if device is None else device
        pinned = _Pinned(source_datapipe, device, pin_memory_fn)
        return form_on(pinned, "prefetch")(2)  # type: ignore[no-any-return]


class _PinIterator(NodeIterator[Any]):
    node: _Pinned

    def run(self) -> Any:
        fn, device = self.node.pin_memory_fn, self.node.device
        return (fn(item, device) for item in self.source.items())


class _Pinned(OnePerItem[Any]):
    iterator = _PinIterator
    form = "pin_memory"
    node_title = "pin_memory()"
    alters_stream = False
    one_to_one = True
    runs_in_main = True

    def __init__(
        self, source_datapipe: IterDataPipe[Any], device: Any, pin_memory_fn: Callable[[Any, Any], Any]
    ) -> None:
        super().__init__(source_datapipe)
        self.device = device
        self.pin_memory_fn = pin_memory_fn
