"""The source that deals items to shards, against a simple model of it: lists."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.tries import tries
from torchpipe.execution.dispatch import DispatchSource, dispatch_start
from torchpipe.execution.epoch import ShardSpec
from torchpipe.iter import IterableWrapper
from torchpipe.node.host import Host
from torchpipe.state import Cursor, SnapshotPolicy, encode


class Dealing(RuleBasedStateMachine):
    """Shards take at their own pace, some end early, and the source is restored from what they know at any time."""

    @initialize(length=st.integers(0, 40), num_shards=st.integers(1, 4), every=st.integers(1, 5))
    def begin(self, length: int, num_shards: int, every: int) -> None:
        self.graph = IterableWrapper(range(length)).shuffle(buffer_size=7)
        self.spec = ShardSpec(seed=3, epoch=0, shard=0, num_shards=num_shards)
        self.policy = lambda: SnapshotPolicy(every=every)
        whole = self.open(dict.fromkeys(range(num_shards)), shards=1)
        self.items = [entry[0] for entry in iter(lambda: whole.take(0), None) if not isinstance(entry, Cursor)]
        self.shares = {shard: self.items[shard::num_shards] for shard in range(num_shards)}
        self.taken = dict.fromkeys(range(num_shards), 0)
        self.marks = {shard: Cursor() for shard in range(num_shards)}
        self.source = self.open(dict.fromkeys(range(num_shards)))

    def open(self, snapshots: dict[int, bytes | None], shards: int | None = None) -> DispatchSource:
        spec = self.spec if shards is None else ShardSpec(seed=3, epoch=0, shard=0, num_shards=shards)
        wanted = snapshots if shards is None else {0: None}
        return DispatchSource.open(
            self.graph, spec, dispatch_start(wanted, spec.num_shards), host=Host(policy=self.policy)
        )

    @rule(data=st.data())
    def take(self, data: Any) -> None:
        if not self.taken:
            return
        shard = data.draw(st.sampled_from(sorted(self.taken)))
        while isinstance(entry := self.source.take(shard), Cursor):
            self.marks[shard] = entry
        share = self.shares[shard]
        if self.taken[shard] == len(share):
            assert entry is None
        else:
            assert entry == (share[self.taken[shard]],)
            self.taken[shard] += 1

    @rule(data=st.data(), items=st.integers(0, 5))
    def take_what_is_ready(self, data: Any, items: int) -> None:
        if not self.taken:
            return
        shard = data.draw(st.sampled_from(sorted(self.taken)))
        for entry in self.source.take_ready(shard, items):
            if isinstance(entry, Cursor):
                self.marks[shard] = entry
            else:
                assert entry == (self.shares[shard][self.taken[shard]],)
                self.taken[shard] += 1

    @rule(data=st.data())
    def a_shard_ends(self, data: Any) -> None:
        """After that the source is opened for the others alone."""
        if len(self.taken) > 1:
            shard = data.draw(st.sampled_from(sorted(self.taken)))
            del self.taken[shard]
            self.restore()

    @rule()
    def restore(self) -> None:
        self.source.close()
        count = self.spec.num_shards
        snapshots: dict[int, bytes | None] = {}
        for shard, taken in self.taken.items():
            mark = self.marks[shard]
            since = taken - len(range(shard, mark.count, count))
            state = {"dealt": Cursor(mark.snapshot, since, taken), "position": mark.count}
            snapshots[shard] = encode({"iterator": state})
        start = dispatch_start(snapshots, self.spec.num_shards)
        # As late as can be: the newest mark that any shard knows and that none has yet to pass.
        first = min(start.needed.values(), default=0)
        known = [mark.count for shard, mark in self.marks.items() if shard in self.taken and mark.count <= first]
        assert start.mark.count == max(known, default=0)
        self.source = self.open(snapshots)

    @invariant()
    def a_mark_is_behind_what_its_shard_has_had(self) -> None:
        for shard, taken in getattr(self, "taken", {}).items():
            assert self.marks[shard].count <= taken * self.spec.num_shards + shard


Dealing.TestCase.settings = settings(max_examples=tries(60), stateful_step_count=40, deadline=None)
TestDealing = Dealing.TestCase


def test_a_shard_that_starves_does_not_block_the_others() -> None:
    """One shard takes everything before another takes anything: what is dealt to that one waits, and is counted."""
    graph = IterableWrapper(range(300))
    spec = ShardSpec(seed=0, epoch=0, shard=0, num_shards=3)
    source = DispatchSource.open(graph, spec, dispatch_start({0: None, 1: None, 2: None}, 3))
    entries = [entry for entry in iter(lambda: source.take(1), None) if not isinstance(entry, Cursor)]
    assert entries == [(number,) for number in range(1, 300, 3)]
    assert source.longest >= 100
    source.close()
