"""``torchpipe rows`` and ``torchpipe batch``: what a step of a run had, from a checkpoint and the loader alone.

The loader is made as that of the rank, without a process group; it is asked, and not iterated.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from torchpipe.errors import StateError
from torchpipe.execution.ranks import acting_as
from torchpipe.observe.cli.states import State, read_states
from torchpipe.observe.cli.targets import loader_of
from torchpipe.observe.steps.rows import Rows, last_of
from torchpipe.state import merge

__all__ = ["batch", "rows"]

_OF_SHARD = re.compile(r"shard \d+ of \d+$")  # as a checkpoint names the state of one, whichever rank hosted it


def rows(options: argparse.Namespace) -> tuple[int, Any]:
    """The rows of steps, or the steps of a row: of those before the checkpoint, if none are named."""
    if options.steps is None and options.find is None:
        raise ValueError("say which steps, --steps 1200:1210, or which sample of the steps so far, --find ID")
    with _loader(options) as (loader, so_far):
        if options.steps is None and (options.epoch is not None or not so_far):
            why = "no step of its epoch is before the checkpoint" if options.epoch is None else "of --epoch"
            raise ValueError(f"say which steps --find is to look into ({why}): --steps 0:1000")
        steps = range(so_far) if options.steps is None else options.steps
        keep = [] if options.keep is None else options.keep.split(",")
        found: Rows = loader.rows(steps, keep=keep, epoch=options.epoch)
        if found.makes:
            last = last_of(steps)
            end = "the end of the epoch" if last is None else f"step {last}"
            print(
                f"torchpipe: makes the items from step {found.first} to {end} in this process, and throws them away: "
                f"which samples they have is decided by, or behind, {', '.join(found.made_by)}",
                file=sys.stderr,
                flush=True,
            )
        with found:
            if options.find is None:
                shown = list(found)
                return int(not shown), _shown(shown, options.json)
            places = [(step, row) for step, each in found for row, value in enumerate(each) if _is(value, options.find)]
    if options.json:
        return int(not places), [{"step": step, "row": row} for step, row in places]
    lines = [f"step {step}, row {row}" for step, row in places]
    return int(not places), "\n".join(lines) or f"{options.find} is in none of {_range(steps)}"


def _range(steps: Sequence[int]) -> str:
    return f"steps {steps[0]} to {steps[-1]}: --steps names others" if steps else "no steps"


def _shown(found: list[Any], as_json: bool) -> Any:
    if as_json:
        return [{"step": step, "rows": _texts(each)} for step, each in found]
    return (
        "\n".join(f"{step}: {' '.join(map(str, each))}" for step, each in found) or "the epoch has none of these steps"
    )


def _is(row: Any, text: str) -> bool:
    """True if ``row``, or a part of it, is shown so."""
    parts = row.values() if isinstance(row, Mapping) else row if isinstance(row, list | tuple) else ()
    return text in (str(row), str(_texts(row))) or any(_is(part, text) for part in parts)


def _texts(row: Any) -> Any:
    """The row as JSON can hold it: bytes are text."""
    if isinstance(row, Mapping):
        return {name: _texts(value) for name, value in row.items()}
    if isinstance(row, list | tuple):
        return [_texts(part) for part in row]
    return row.decode("utf-8", "backslashreplace") if isinstance(row, bytes) else row


def batch(options: argparse.Namespace) -> tuple[int, Any]:
    """The batch of a step, saved."""
    output = Path(options.output).resolve()
    if output == Path(options.file).resolve():
        raise ValueError(f"-o {options.output} is the checkpoint itself: name another file")
    if not output.parent.is_dir():
        raise ValueError(f"-o {options.output}: there is no folder {output.parent}")
    with _loader(options) as (loader, _):
        made = loader.item_at(options.step, epoch=options.epoch)
    torch.save(made, options.output)
    told = {"step": options.step, "file": options.output}
    return 0, told if options.json else f"step {options.step} is in {options.output}"


@contextmanager
def _loader(options: argparse.Namespace) -> Iterator[tuple[Any, int]]:
    """The loader of the rank, with the state loaded, and how many steps were before that."""
    states = read_states(options.file)
    rank, world = options.rank, options.world_size
    state = _state_of(states, options)
    if world is None:
        world = state.get("world_size", 1)
        world = world if type(world) is int else 1
    if rank is None:
        rank = state.get("rank", 0) if state.get("world_size", 1) == world else 0
    if not 0 <= rank < world:
        raise ValueError(f"--rank={rank} of {world} ranks: say how many there were, --world-size N")
    with acting_as(rank, world):
        loader = loader_of(options.target, rank=rank, world_size=world)
        if getattr(loader, "distributed", False) and options.world_size is None and "world_size" not in state:
            raise ValueError("the state does not say among how many ranks: say which one, --rank R --world-size N")
        try:
            loader.load_state_dict(dict(state), allow_pickle=options.allow_pickle)
            yield loader, state["delivered"]
        finally:
            loader.shutdown()


def _state_of(states: Mapping[str, State], options: argparse.Namespace) -> Mapping[str, Any]:
    """The one state in a checkpoint; of several, the one that is named, that of the rank, or all of them joined."""
    rank, world = options.rank, options.world_size
    found = {where: state for where, state in states.items() if isinstance(state, Mapping)}
    if options.state is not None:
        if options.state not in found:
            raise StateError(f"{options.file} has no state {options.state!r}, but {', '.join(found)[:300]}")
        return found[options.state]
    if len(found) == 1:
        return next(iter(found.values()))
    of_ranks = [state for where, state in found.items() if not _OF_SHARD.search(where)]
    own = [state for state in of_ranks if rank is not None and state.get("rank") == rank]
    if len(own) == 1 and own[0].get("world_size") == (len(found) if world is None else world):
        return own[0]
    if found and all(state.get("world_size") == len(found) for state in found.values()):
        return merge(found.values())
    raise StateError(
        f"{options.file} has {len(found)} states of loaders: say which one, --state NAME, of {', '.join(found)[:300]}"
    )
