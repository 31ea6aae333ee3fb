"""What is refused of Ray, and how early."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

import torchpipe
from reading_services import RayReadingService, RayWorkers
from tests.actors.cluster_rig import plain, ray_loader, seeded
from torchpipe import DataLoader
from torchpipe.errors import NotSerializableError
from torchpipe.iter import IterableWrapper


def test_ray_client_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match=r"Ray Client \(ray://\) is not supported.*ray job submit"):
        RayReadingService(1, worker_method=RayWorkers(address="ray://somewhere:10001"))


def test_another_cluster_than_the_one_that_this_process_is_connected_to_is_refused() -> None:
    with pytest.raises(ValueError, match="is connected to Ray at .*, not at 10.0.0.1:6379"):
        RayReadingService(1, worker_method=RayWorkers(address="10.0.0.1:6379"))


class Holding:
    """What functions hold now and then, and no other process can have."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self, item: Any) -> Any:
        return item


def test_a_graph_that_cannot_be_sent_is_refused_by_the_name_of_its_node() -> None:
    graph = IterableWrapper(range(4)).sharding_filter().map(Holding())
    with pytest.raises(NotSerializableError, match=r"Mapper.*cannot be sent to a Ray actor.*'lock'"):
        seeded(graph, RayReadingService(1))


class Told(Dataset[int]):
    """As docs/handles.md has it, for processes."""

    def __init__(self) -> None:
        self.epoch = torch.zeros((), dtype=torch.long).share_memory_()

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index + 100 * int(self.epoch)


def test_a_tensor_in_shared_memory_is_refused_since_an_actor_would_have_a_copy() -> None:
    what = r"is, or refers to, a tensor in shared memory.*tensor\.clone\(\).*persistent_workers=False"
    with pytest.raises(NotSerializableError, match=rf"'epoch' of its dataset \(Told\) {what}"):
        list(DataLoader(Told(), num_workers=1, worker_method=RayWorkers(num_cpus=0.5)))
    offset = torch.ones(()).share_memory_()
    for graph in (
        IterableWrapper(range(4)).sharding_filter().map(lambda item: item + offset),
        IterableWrapper(range(4)).map(lambda item: item + offset).sharding_round_robin_dispatch(),
    ):
        with pytest.raises(NotSerializableError, match=rf"Mapper.*its fn.*{what}"):
            seeded(graph, RayReadingService(1, worker_method=RayWorkers(num_cpus=0.5)))
    plain = Told()
    plain.epoch = plain.epoch.clone()
    loader = DataLoader(plain, batch_size=4, num_workers=1, worker_method=RayWorkers(num_cpus=0.5))
    epochs = []
    for epoch in range(2):  # as the error says
        plain.epoch.fill_(epoch)
        epochs += [batch.tolist() for batch in loader]
    assert epochs == [[0, 1, 2, 3], [100, 101, 102, 103]]


def test_a_module_that_workers_lack_is_an_error_that_says_how_it_gets_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "of_the_project.py").write_text("def double(item):\n    return 2 * item\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    double = importlib.import_module("of_the_project").double
    graph = IterableWrapper(range(4)).sharding_filter().map(double)
    with ray_loader(graph, 1, 1) as loader, pytest.raises(ModuleNotFoundError, match="of_the_project") as caught:
        list(loader)
    assert any("ray.init(runtime_env={'working_dir': '.'})" in note for note in caught.value.__notes__)


def test_a_folder_of_this_machine_is_for_ray_init() -> None:
    for given in ({"working_dir": "."}, {"py_modules": ["src/project"]}):
        with pytest.raises(ValueError, match=r"which lies on this machine.*ray\.init\(runtime_env="):
            RayWorkers(runtime_env=given)
    assert RayWorkers(runtime_env={"working_dir": "s3://bucket/code.zip"}).runtime_env is not None
    with pytest.raises(TypeError, match="runtime_env must be a dict"):
        RayReadingService(1, worker_method=RayWorkers(runtime_env="pip"))  # type: ignore[arg-type]


def test_a_node_with_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchpipe, "__version__", "9.9")
    with ray_loader(plain(), 1, 1) as loader, pytest.raises(RuntimeError, match=r"has torchpipe .*, this process 9\.9"):
        list(loader)


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"num_cpus": -1}, ValueError),
        ({"num_cpus": "2"}, TypeError),
        ({"memory": 0}, ValueError),
        ({"memory": "1GB"}, TypeError),
        ({"resources": ["a"]}, TypeError),
        ({"resources": {"GPU": 1}}, ValueError),
        ({"label_selector": "pool"}, TypeError),
        ({"start_timeout": 0}, ValueError),
    ],
)
def test_arguments_out_of_range(arguments: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind, match=next(iter(arguments))):
        RayWorkers(**arguments)


def test_arguments_of_loaders() -> None:
    with pytest.raises(TypeError, match="worker_method must be"):
        DataLoader(range(4), num_workers=1, worker_method=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="multiprocessing_context='fork'"):
        DataLoader(range(4), num_workers=1, worker_method=RayWorkers(), multiprocessing_context="fork")
    with pytest.raises(ValueError, match="num_workers"):
        RayReadingService(0)
    with pytest.raises(TypeError, match="worker_method must be"):
        RayReadingService(1, worker_method="ray")  # type: ignore[arg-type]


MISSING = """
import sys
sys.modules["ray"] = None
from reading_services import RayReadingService
RayReadingService(1)
"""

UNREACHABLE = """
from reading_services import RayReadingService, RayWorkers
RayReadingService(1, worker_method=RayWorkers(address="127.0.0.1:9"))
"""


@pytest.mark.parametrize(
    ("script", "error"),
    [(MISSING, "ImportError: workers in Ray actors need Ray: pip install 'ray"), (UNREACHABLE, "ConnectionError")],
)
def test_without_ray_and_without_a_cluster(script: str, error: str) -> None:
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=100)
    assert done.returncode != 0
    assert error in done.stderr
