"""SPMD with four devices, in processes of their own: layouts, refusals, and a training that is killed and goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.warm import Warm

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("spmd_script.py")

pytestmark = pytest.mark.xla


def run_script(warm_xla: Warm, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "4", "PYTHONPATH": str(ROOT)} | more
    return warm_xla.run([str(SCRIPT), *arguments], cwd=ROOT, env=environment)


@pytest.fixture(scope="module")
def layouts(warm_xla: Warm) -> dict[str, Any]:
    done = run_script(warm_xla, "layouts")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def test_a_nested_tree_divides_each_tensor_its_own_way(layouts: dict[str, Any]) -> None:
    two_axes, labels, everywhere = layouts["nested"]
    assert two_axes == "{devices=[2,2]0,1,2,3}"
    assert labels == "{devices=[2,2]0,1,2,3 last_tile_dim_replicate}"  # a 1-D tensor on a mesh of two axes
    assert everywhere == "{replicated}"
    rows = [[float(4 * row + column) for column in range(4)] for row in range(8)]
    assert layouts["nested values"] == [rows, list(range(8)), ["a", None]]
    assert layouts["nested type"] == "Pair"


def test_torch_xlas_own_spec_is_taken(layouts: dict[str, Any]) -> None:
    assert layouts["one spec"] == ["{devices=[4,1]0,1,2,3}"] * 2
    assert layouts["names by key"] == "{devices=[4,1]0,1,2,3}"
    assert layouts["scalar"] == "{replicated}"


def test_a_minibatch_is_this_hosts_part(layouts: dict[str, Any]) -> None:
    assert layouts["minibatch"] == ["{devices=[4,1]0,1,2,3}", [8, 4]]  # of one host: the whole


def test_the_drop_in_loader_divides_too(layouts: dict[str, Any]) -> None:
    assert layouts["drop-in"] == [["{devices=[4,1]0,1,2,3}", "{replicated}"]] * 2


def test_one_spec_for_images_and_labels_replicates_the_labels_and_says_so(layouts: dict[str, Any]) -> None:
    """As torch_xla's examples have it: ``input_sharding=ShardingSpec(mesh, ('data', None))`` over (image, label)."""
    for place in ("labels", "labels of the drop-in"):
        assert layouts[place] == [["{devices=[4,1]0,1,2,3}", "{replicated}"]] * 2
    (said,) = [text for text in layouts["said"] if "fewer than" in text]
    assert said.startswith(
        "batch[1] has 1 dimensions, fewer than the one spec ('data', None) of its batch: it is copied"
    )


def test_rows_that_do_not_divide_evenly_keep_their_values(layouts: dict[str, Any]) -> None:
    assert layouts["uneven"] == ["{devices=[4,1]0,1,2,3}", [float(value) for value in range(14)]]


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("rank", "ValueError: batch[1] has 3 dimensions and its spec ('data', None) has 2"),
        ("rank in a tree", "ValueError: batch['label'] has 1 dimensions"),
        ("missing", "KeyError: \"input_sharding has nothing for batch['label']"),
        ("missing attribute", "KeyError: 'input_sharding has nothing for batch.extra"),
        ("too much", "ValueError: input_sharding has ['label'] at batch"),
        ("container", "ValueError: batch['image'] is a tensor, but input_sharding has list at its place"),
        ("axis", "ValueError: the sharding ('model', None) does not fit the mesh"),
        ("axis twice", "ValueError: the sharding ('data', 'data') does not fit the mesh"),
        ("minibatch rows", "RuntimeError: When minibatch is configured, the per-host batch size must be divisible by"),
        ("minibatch part", "ValueError: the sharding ('data', None) with minibatch=True must divide the first"),
        ("other device", "ValueError: input_sharding is for device='xla'"),
    ],
)
def test_L7_what_would_be_replicated_silently_is_refused(layouts: dict[str, Any], case: str, message: str) -> None:
    assert layouts["errors"][case].startswith(message)


def test_torch_xla_itself_replicates_silently_or_fails(layouts: dict[str, Any]) -> None:
    """Why specs are matched and applied here. Should this fail one day, torch_xla has mended it."""
    assert layouts["torch_xla"]["rank"] == "{replicated}"
    assert layouts["torch_xla"]["labels on two axes"].startswith("IndexError")


def test_the_work_of_another_device_is_started_there(warm_xla: Warm) -> None:
    done = run_script(warm_xla, "other_device")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["default"], result["where"]) == ("xla:0", ["xla:2"])
    assert result["values"] == [0.0, 2.0, 4.0, 6.0]
    assert result["executions"] == [1, 2, 3, 4]
    assert result["executions after"] == 4  # all was computed before it was read


def lines_of(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / "seen").read_text().splitlines()]


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_L2_a_training_that_is_killed_goes_on_exactly(tmp_path: Path, warm_xla: Warm) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    done = run_script(warm_xla, "train", str(whole))
    assert done.returncode == 0, done.stderr
    killed = run_script(warm_xla, "train", str(broken), "5")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    before = lines_of(broken)
    assert [line[0] for line in before] == list(range(1, 6))
    done = run_script(warm_xla, "train", str(broken))
    assert done.returncode == 0, done.stderr
    after = lines_of(broken)[5:]
    assert after[0][0] == 4  # after the checkpoint of step 3: two steps are done again
    expected = lines_of(whole)
    assert len(expected) == 16
    assert sorted(number for _, ids, _ in expected[:8] for number in ids) == list(range(64))
    assert before + after[2:] == before[:3] + after == expected
