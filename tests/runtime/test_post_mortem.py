"""What is said of a process that has died again and again."""

from __future__ import annotations

import pytest

from reading_services._runtime.post_mortem import PostMortem


@pytest.mark.parametrize(("shard", "said"), [(-1, True), (0, False)])
def test_a_script_without_its_guard_is_the_likely_cause_where_no_item_was_made(shard: int, said: bool) -> None:
    dead = PostMortem(
        name="worker 0",
        pid=7,
        cause="exited with code 1",
        dispatcher=False,
        lane=shard,
        shard=shard,
        items=range(2, 3),
        node=None,
    )
    text = str(dead.error(3))
    assert text.startswith("worker 0 (pid 7) exited with code 1 while making")
    assert ('a script needs `if __name__ == "__main__":`' in text) == said
