"""torch_xla's loaders and torchpipe's, each in a process of its own, through the same cases. Prints facts as JSON.

``python -m tests.xla.side_by_side torch_xla|torchpipe``, on 4 CPU devices. What hangs is left behind in daemon
threads, and the process ends by ``os._exit``. Not a test module: ``test_side_by_side.py`` reads the facts.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import multiprocessing
import os
import sys
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

os.environ.update(PJRT_DEVICE="CPU", CPU_NUM_DEVICES="4")

import torch

from tests.device.loaders import Plain, Saved, batch, index_of, indices

__all__ = ["CASES", "main"]

HANG_S = 8.0  # a consumer that has nothing for so long, while nobody else runs, waits for ever
IDLE_S = 0.5


class Names(NamedTuple):
    """The library under test."""

    MpDeviceLoader: Any
    ParallelLoader: Any
    ours: bool


def device(index: int = 0) -> torch.device:
    return torch.device("xla", index)


def attempt(step: Callable[[], Any]) -> dict[str, Any]:
    """What ``step`` gives, in a thread of its own: a value, an error, or nothing at all."""
    result: dict[str, Any] = {"hangs": True}

    def run() -> None:
        try:
            value: dict[str, Any] = {"value": step()}
        except BaseException as error:
            value = {"raised": type(error).__name__}
        result.update(value, hangs=False)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(HANG_S)
    return dict(result)


def collect(batches: Any, limit: int = 10**9) -> dict[str, Any]:
    """The indices of the batches, and what was raised after them."""
    got: list[int] = []
    try:
        for item in batches:
            got.append(index_of(item))
            if len(got) == limit:
                break
    except Exception as error:
        return {"got": got, "raised": type(error).__name__}
    return {"got": got, "raised": None}


def wait_still(loader: Any, at_least: int = 0) -> int:
    """How many batches ``loader`` has given when it is not asked for more; at least so many are waited for."""
    deadline = time.monotonic() + 20
    while len(loader.read) < at_least and time.monotonic() < deadline:
        time.sleep(0.01)
    count, since = -1, time.monotonic()
    while time.monotonic() - since < IDLE_S:
        if len(loader.read) != count:
            count, since = len(loader.read), time.monotonic()
        time.sleep(0.01)
    return count


def a_loader_that_raises(names: Names) -> Any:
    return collect(names.MpDeviceLoader(Plain(9, fail_at=4), device()))


class Unready:
    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError("no data today")


def an_iter_that_raises(names: Names) -> Any:
    return attempt(lambda: len(list(names.MpDeviceLoader(Unready(), device()))))


def draining_one_device(names: Names) -> Any:
    loader = names.ParallelLoader(Plain(200), [device(0), device(1)])
    return attempt(lambda: len(list(loader.per_device_loader(device(0)))))


def a_last_group_that_is_too_small(names: Names) -> Any:
    loader = names.ParallelLoader(Plain(10), [device(index) for index in range(4)])
    got = [indices(loader.per_device_loader(device(index))) for index in range(4)]
    return {"got": got, "samples": loader.per_device_samples()}


def several_transfer_threads(names: Names) -> Any:
    loader = names.MpDeviceLoader(Plain(600), device(), host_to_device_transfer_threads=2)
    got = indices(loader)
    return {"out_of_place": sum(index != item for index, item in enumerate(got)), "count": len(got)}


def none_as_a_batch(names: Names) -> Any:
    def given(position: int) -> Any:
        items: list[Any] = [torch.tensor(index) for index in range(12)]
        items[position] = None
        return [None if item is None else int(item) for item in names.MpDeviceLoader(items, device())]

    return {"at 3": given(3), "at 8": given(8)}


def a_loop_left_by_break(names: Names) -> Any:
    before = set(threading.enumerate())
    loader = Plain(200)
    wrapped = names.MpDeviceLoader(loader, device())
    for _ in wrapped:
        break
    read = wait_still(loader, 0 if names.ours else 33)
    del _
    gc.collect()
    left = [thread for thread in threading.enumerate() if thread not in before]
    for thread in left:
        thread.join(IDLE_S)
    return {"threads": sum(thread.is_alive() for thread in left), "read": read}


def closing_while_the_loader_blocks(names: Names) -> Any:
    loader = Plain(9, block_at=2)
    wrapped = names.ParallelLoader(loader, [device()])
    reader = threading.Thread(target=lambda: list(wrapped.per_device_loader(device())), daemon=True)
    reader.start()
    loader.blocked.wait(20)
    result = attempt(wrapped.close)
    loader.gate.set()
    return result


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


@dataclasses.dataclass(slots=True)
class Slotted:
    x: torch.Tensor


class Subclass(torch.Tensor):
    pass


def types_of_batches(names: Names) -> Any:
    def arrives(item: Any, look: Callable[[Any], Any]) -> Any:
        try:
            (got,) = list(names.MpDeviceLoader([item], device()))
        except TypeError as error:
            return ["TypeError", str(error)]
        return [type(got).__name__, look(got).device.type]

    one = torch.ones(2)
    return {
        "namedtuple": arrives(Pair(one, one), lambda got: got[0]),
        "OrderedDict": arrives(OrderedDict(x=one), lambda got: got["x"]),
        "dataclass with slots": arrives(Slotted(one), lambda got: got.x),
        "subclass": arrives(one.as_subclass(Subclass), lambda got: got),
        "Parameter": arrives(torch.nn.Parameter(one), lambda got: got),
        "list": arrives([one], lambda got: got[0]),
        "dict": arrives({"x": one}, lambda got: got["x"]),
    }


def uint16(names: Names) -> Any:
    item = torch.tensor([1, 40000]).to(torch.uint16)
    result = attempt(lambda: [batch.cpu().tolist() for batch in names.MpDeviceLoader([item], device())])
    return {"value": result.get("value"), "raised": result.get("raised")}


def sparse(names: Names) -> Any:
    good: list[Any] = [batch(index) for index in range(20)]
    good[10] = {"x": torch.eye(2).to_sparse(), "index": 10}
    return collect(names.MpDeviceLoader(good, device()))


def read_ahead(names: Names) -> Any:
    loader = Plain(200)
    iterator = iter(names.MpDeviceLoader(loader, device()))
    before = wait_still(loader, 0 if names.ours else 33)
    next(iterator)
    return {"before the first next": before, "after it": wait_still(loader, 25)}


def the_first_batch(names: Names) -> Any:
    """Is the first batch handed out while the loader waits for its ``n``-th?"""
    result = {}
    for number in (1, 7):
        loader = Plain(30, block_at=number)
        iterator = iter(names.MpDeviceLoader(loader, device()))
        first = threading.Thread(target=next, args=(iterator,), daemon=True)
        first.start()
        loader.blocked.wait(20)
        first.join(HANG_S)
        result[f"with {number} read"] = not first.is_alive()
        loader.gate.set()
        first.join(20)
        assert not first.is_alive()
        list(iterator)
    return result


def batches_per_execution(names: Names) -> Any:
    """16 steps of one operation each. Executions are those of the loop; each length of a group is compiled once."""
    import torch_xla
    import torch_xla.core.xla_model as xm
    import torch_xla.debug.metrics as metrics

    weight = torch.ones(2, device=device())
    torch_xla.sync()
    xm.wait_device_ops()  # executions are counted when they are done
    metrics.clear_all()
    for item in names.MpDeviceLoader(Plain(16), device(), batches_per_execution=4):
        weight += item["x"]
    xm.wait_device_ops()
    count = {name: metrics.metric_data(name) for name in ("ExecuteTime", "CompileTime")}
    return {name: 0 if data is None else data[0] for name, data in count.items()} | {"sum": weight.tolist()}


class Counted:
    """A StatefulDataLoader of 300 batches that tells what was read."""

    def __init__(self, workers: int) -> None:
        from torchdata.stateful_dataloader import StatefulDataLoader

        options = {"multiprocessing_context": "forkserver"} if workers else {}
        self.loader = StatefulDataLoader(range(600), batch_size=2, num_workers=workers, **options)
        self.read: list[int] = []
        self.state_dict, self.load_state_dict = self.loader.state_dict, self.loader.load_state_dict

    def __iter__(self) -> Iterator[Any]:
        for item in self.loader:
            self.read.append(int(item[0]))
            yield item


READ_AHEAD = {(1, 1): 4, (16, 8): 31, (128, 1): 131}  # at least, by torch_xla


def one_checkpoint(names: Names, workers: int, sizes: tuple[int, int], cut: int) -> int:
    """How many batches are missing (or, negative, repeated) after a restore after ``cut`` batches."""

    def wrap() -> tuple[Counted, Any, Any]:
        inner = Counted(workers)
        options = {"loader_prefetch_size": sizes[0], "device_prefetch_size": sizes[1]}
        wrapped = names.MpDeviceLoader(inner, device(), **options)
        return inner, wrapped, wrapped if names.ours else inner

    def end() -> None:
        (wrapped if names.ours else wrapped._parallel_loader).close()

    inner, wrapped, saved = wrap()
    iterator = iter(wrapped)
    for _ in range(cut):
        taken = next(iterator)
    assert taken.tolist() == [2 * cut - 2, 2 * cut - 1]
    if not names.ours:
        wait_still(inner, cut + READ_AHEAD[sizes])
    state = saved.state_dict()
    end()
    inner, wrapped, saved = wrap()
    saved.load_state_dict(state)
    iterator = iter(wrapped)
    first = int(next(iterator)[0])
    end()
    return first // 2 - cut


def checkpoints(names: Names) -> Any:
    multiprocessing.set_forkserver_preload(["torch", "torchdata.stateful_dataloader"])
    return {
        f"{sizes[0]}/{sizes[1]}, {workers} workers, after {cut}": one_checkpoint(names, workers, sizes, cut)
        for workers in (0, 2)
        for sizes in READ_AHEAD
        for cut in (1, 10, 40)
    }


def a_checkpoint_of_a_shuffled_loader(names: Names) -> Any:
    """The whole of two epochs, saved and restored in the midst of each."""
    got: list[int] = []
    state = None
    for cut in (7, 20, 6, 99):
        inner = Saved(20)
        wrapped = names.MpDeviceLoader(inner, device())
        if state is not None:
            (wrapped if names.ours else inner).load_state_dict(state)
        iterator = iter(wrapped)
        got += collect(iterator, cut)["got"]
        state = (wrapped if names.ours else inner).state_dict()
    reference = Saved(20).order(0) + Saved(20).order(1)
    return {"missing": len(set(reference) - set(got)), "exact": got == reference}


CASES = (
    a_loader_that_raises,
    an_iter_that_raises,
    draining_one_device,
    a_last_group_that_is_too_small,
    several_transfer_threads,
    none_as_a_batch,
    a_loop_left_by_break,
    closing_while_the_loader_blocks,
    types_of_batches,
    uint16,
    sparse,
    read_ahead,
    the_first_batch,
    batches_per_execution,
    checkpoints,
    a_checkpoint_of_a_shuffled_loader,
)


def main(library: str) -> None:
    os.setsid()  # to be ended with all that it leaves behind
    ours = library == "torchpipe"
    if ours:
        import torchpipe.xla.drop_in as loaders
    else:
        import torch_xla.distributed.parallel_loader as loaders  # type: ignore[no-redef]
    names = Names(loaders.MpDeviceLoader, loaders.ParallelLoader, ours)
    facts: dict[str, Any] = {}
    for case in CASES:
        try:
            began = time.monotonic()
            facts[case.__name__] = case(names)
            print(f"{case.__name__}: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
        except Exception:
            facts[case.__name__] = {"failed": traceback.format_exc()}
    print(json.dumps(facts), flush=True)
    os._exit(0)  # threads that hang would be waited for


if __name__ == "__main__":
    main(sys.argv[1])
