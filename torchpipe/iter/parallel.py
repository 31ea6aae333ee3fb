"""``parallel_map``: a function in threads, in order.

Who owns what: the iterator pulls the input, keeps it for the state, and owns the threads (``ahead/call_threads`` says
how they end, and how each wait does); the threads run the function on copies, and touch nothing else.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import takewhile
from typing import Any, TypeVar, overload

import torch

from torchpipe.ahead.call_threads import Call, CallThreads
from torchpipe.errors import GraphError, StateError, raise_error_of
from torchpipe.iter._shared.bases import CountingIterator, OnePerItem, apply_to_columns, single_output
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.iterator import stored_count, stored_items
from torchpipe.node.pass_copy import has_state
from torchpipe.node.tolerance import as_note, of_note
from torchpipe.node.traits import callable_name, node_name, stream_arguments
from torchpipe.node.validate import check_columns, check_count
from torchpipe.randomness.global_random import RandomStates
from torchpipe.randomness.seeds import ItemStreams, stored_key
from torchpipe.state.copying import copy_item

__all__ = ["MOST_THREADS", "ParallelMapper"]

T = TypeVar("T")
R = TypeVar("R")

_END: Any = object()
_CHECK_EVERY = 64  # items between two looks at the global random states
MOST_THREADS = 1024
_BUFFER = 8  # the same for a few threads more or less, so that a state loads under them


class _ParallelIterator(CountingIterator[R]):
    node: ParallelMapper[R]

    def __init__(self, node: ParallelMapper[R], context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context, source)
        retries = context.retries
        self.fn = node.fn if retries is None else retries.around(node.fn, in_threads=True)
        self.streams = ItemStreams(context.stream_key(node))
        self.pulled = 0
        self.ahead: deque[tuple[Any, Call[R] | None]] = deque()  # inputs, and what is made of them
        self.waits = 0  # for an item, in this pass
        self.asked_for: Any = None  # the input of the item that is handed out next
        self.error: Exception | None = None  # of the input, to be raised after what is ahead
        threads = torch.get_num_threads()  # which torch keeps by thread
        self.threads = CallThreads(node_name(node), [partial(_begin, threads)] * node.num_threads, shared=True)

    def get_state(self) -> dict[str, Any]:
        failed = None if self.error is None else as_note(self.error)
        if self.error is not None and failed is None:
            raise StateError(
                f"the input of {node_name(self.node)} has raised {type(self.error).__name__}, which comes after the "
                "items that are ahead: until then no state can be taken"
            )
        ahead = [item for item, _ in self.ahead]
        state = {"key": list(self.streams.key), "pulled": self.pulled, "ahead": ahead}
        return state if failed is None else {**state, "failed": failed}

    def set_state(self, state: dict[str, Any]) -> None:
        self.streams = ItemStreams(stored_key(state["key"]))
        self.pulled = stored_count(state, "pulled")
        self.ahead.extend((item, None) for item in stored_items(state, "ahead", at_most=self.node.buffer_size))
        if "failed" in state:  # the next item of the input
            self.error = of_note(state["failed"], self)
        if len(self.ahead) > self.pulled:
            raise StateError(f"{len(self.ahead)} items are ahead in the state, of {self.pulled} that were pulled")

    def run(self) -> Iterator[R]:
        while True:
            self._pull()
            if not self.ahead:
                break
            if not self.waits:
                self._try_first()
            self._submit(len(self.ahead))
            call = self.ahead[0][1]
            assert call is not None
            self._wait(call)
            self.asked_for = self.ahead.popleft()[0]
            yield call.result()
        if self.error is not None:
            raise_error_of(self)

    def current(self) -> object:
        return self.asked_for

    def _pull(self) -> None:
        """Pull as many items as may be ahead, in time or not: the draws of the input must not depend on that."""
        while len(self.ahead) < self.node.buffer_size and self.error is None:
            try:
                item = next(self.source.items(), _END)
            except Exception as error:
                self.error = error
                return
            if item is _END:
                return
            self.ahead.append((item, None))
            self.pulled += 1

    def _submit(self, count: int) -> None:
        """Let the threads have the first ``count`` items that are ahead, unless they have them."""
        first = self.pulled - len(self.ahead)
        waiting = takewhile(lambda index: self.ahead[index][1] is None, range(count - 1, -1, -1))
        for index in reversed(list(waiting)):
            item = self.ahead[index][0]  # which the state has as it came: the function may change what it is given
            self.ahead[index] = (item, self.threads.submit(0, partial(self._call_for(first + index), copy_item(item))))

    def _call_for(self, index: int) -> Callable[..., R]:
        fn, node = self.fn, self.node
        if node.rng:
            fn = partial(_with_last, fn, self.streams.generator(index))
        return apply_to_columns(fn, node.input_col, node.output_col)

    def _try_first(self) -> None:
        """Call the function for the first item alone: no other call draws meanwhile."""
        if threading.current_thread() is threading.main_thread():  # else others may draw beside it
            before = RandomStates.now().to_dict()
            self._submit(1)
            self._wait(self.ahead[0][1])  # type: ignore[arg-type]
            self._refuse_draws(_drawn_since(before))

    def _wait(self, call: Call[R]) -> None:
        """Until ``call`` is done; now and then, see whether the functions that run meanwhile draw."""
        self.waits += 1
        looks = not self.waits % _CHECK_EVERY and threading.current_thread() is threading.main_thread()
        before = RandomStates.now().to_dict() if looks else {}
        self.threads.wait_first([call], None)
        if looks and (drawn := _drawn_since(before)) != ["python"]:  # a library may: how long to wait between attempts
            self._refuse_draws(drawn)

    def _refuse_draws(self, drawn: list[str]) -> None:
        if drawn:
            raise GraphError(
                f"{callable_name(self.node.fn)} draws from the global random states ({', '.join(drawn)}), which "
                "threads share, so that what it gets depends on timing. Use rng=True, which gives it a generator for "
                "each item, or draw in a map() behind parallel_map()"
            )

    def interrupt(self) -> None:
        self.threads.interrupt()
        super().interrupt()

    def close(self) -> None:
        if self.pass_engine.is_closed:
            return
        for _, call in self.ahead:
            if call is not None:
                call.cancel()
        self.threads.close()
        self.ahead.clear()
        super().close()


@functional_datapipe("parallel_map")
class ParallelMapper(OnePerItem[R]):
    """Applies ``fn`` to several items at a time, in ``num_threads`` threads, and hands the results out in order.

    Gains where ``fn`` waits, or computes without holding Python's interpreter lock: reading, decoding images, video and
    audio, tensor operations. ``input_col`` and ``output_col`` are as with ``map``. Up to ``buffer_size`` items (by
    default 8, or twice the threads if that is more) are pulled ahead, always as many, so that what the nodes before
    draw does not depend on timing. An exception is raised at its item's place.

    Threads share the process's global random states, so ``fn`` must not draw from them: the first item of a pass is
    looked after, and every 64th. Nor can it have a state. With ``rng=True`` it is called with a numpy ``Generator`` of
    the item's own as its last argument, as ``random_map`` does.

    State: the *inputs* of the items that are pulled ahead; give it paths or bytes, not open files. It loads under
    another ``num_threads`` with the same ``buffer_size``. ``fn`` may change
    its item in place: it is called with copies (of what can be changed: not of numbers, texts and bytes).

    Raises: ValueError for counts below 1, or columns that ``fn`` cannot take; TypeError if ``fn`` is no function or has
    a state; while iterating, GraphError if it draws from the global random states.
    """

    iterator = _ParallelIterator
    fingerprint_ignores = ("num_threads",)

    @overload
    def __init__(
        self, datapipe: IterDataPipe[T], fn: Callable[[T], R], *, num_threads: int = ..., buffer_size: int | None = ...
    ) -> None: ...
    @overload
    def __init__(
        self: ParallelMapper[Any],
        datapipe: IterDataPipe[Any],
        fn: Callable[..., Any],
        input_col: Any = ...,
        output_col: Any = ...,
        *,
        num_threads: int = ...,
        buffer_size: int | None = ...,
        rng: bool = ...,
    ) -> None: ...
    def __init__(
        self,
        datapipe: IterDataPipe[Any],
        fn: Callable[..., Any],
        input_col: Any = None,
        output_col: Any = None,
        *,
        num_threads: int = 4,
        buffer_size: int | None = None,
        rng: bool = False,
    ) -> None:
        super().__init__(datapipe)
        self.rng = rng
        columns = list(input_col) if isinstance(input_col, list | tuple) else [input_col]
        check_columns("fn", fn, [*columns, "rng"] if rng else input_col)
        if has_state(fn):
            raise TypeError(
                f"fn, {callable_name(fn)}, has a state of its own, and threads would change it in any order: use "
                "map(), or let it depend on its item alone"
            )
        self.fn = fn
        self.input_col = input_col
        self.output_col = single_output(input_col, output_col)
        self.num_threads = check_count("num_threads", num_threads, at_least=1, at_most=MOST_THREADS)
        self.buffer_size = (
            max(_BUFFER, 2 * self.num_threads)
            if buffer_size is None
            else check_count("buffer_size", buffer_size, at_least=1)
        )

    def made_of(self) -> Mapping[str, Any]:
        return stream_arguments(self)


def _begin(threads: int) -> Callable[[], None]:
    torch.set_num_threads(threads)
    return _end


def _end() -> None:
    return None


def _with_last(fn: Callable[..., Any], last: Any, *parts: Any) -> Any:
    return fn(*parts, last)


def _drawn_since(before: dict[str, Any]) -> list[str]:
    """Whose global random state has changed."""
    after = RandomStates.now().to_dict()
    return [name for name, state in before.items() if after[name] != state]
