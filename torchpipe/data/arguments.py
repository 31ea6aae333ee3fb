"""What is refused of a ``DataLoader``'s arguments beyond what torch's loader refuses. Runs in the user's process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchpipe.data import processes
from torchpipe.data import thread_batches as threads
from torchpipe.node.validate import check_choice

__all__ = ["check_arguments"]

_MOST_WORKERS = 4096


def check_arguments(given: Mapping[str, Any]) -> None:
    """Raises: ValueError for what contradicts itself or can have no effect, among arguments by name."""
    workers, seeding = given["num_workers"], given["worker_seeding"]
    check_choice("worker_seeding", seeding, ("batch", "torch"))
    if given["worker_method"] not in ("multiprocessing", "thread"):
        processes.check_worker_method(given["worker_method"])
        if given["multiprocessing_context"] is not None:
            raise ValueError(
                f"worker_method={given['worker_method']!r} starts Ray actors, not processes of this one: leave out "
                f"multiprocessing_context={given['multiprocessing_context']!r}"
            )
    threads.check_arguments(given["worker_method"], seeding, given["multiprocessing_context"])
    check_choice("on_worker_death", given["on_worker_death"], ("restart", "raise"))
    if given["autotune"] and given["worker_method"] == "thread":
        raise ValueError("autotune chooses among worker processes, and worker_method='thread' has none: leave one out")
    if workers > _MOST_WORKERS:
        raise ValueError(f"num_workers={workers} is more than {_MOST_WORKERS}: is it meant to be prefetch_factor?")
    if workers and given["prefetch_factor"] == 0:
        raise ValueError("prefetch_factor=0: a worker that may make no batch ahead never makes one. Give 1 or more")
    if not workers and given["timeout"] > 0:
        raise ValueError(
            f"timeout={given['timeout']} needs workers: with num_workers=0 batches are made in your own thread, which "
            "nothing interrupts"
        )
    if seeding == "torch" and given["persistent_workers"]:
        raise ValueError(
            "worker_seeding='torch' goes with persistent_workers=False: torch seeds a persistent worker once, and no "
            "state can say where its generators stand epochs later. worker_seeding='batch' goes with both"
        )
