"""What is refused of Ray, and how early."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest

import torchpipe
from reading_services import RayReadingService, RayWorkers
from tests.actors.cluster_rig import plain, ray_loader, seeded
from torchpipe import DataLoader
from torchpipe.errors import NotSerializableError
from torchpipe.iter import IterableWrapper


def test_ray_client_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match=r"Ray Client \(ray://\) is not supported.*ray job submit"):
        RayReadingService(1, address="ray://somewhere:10001")


def test_another_cluster_than_the_one_that_this_process_is_connected_to_is_refused() -> None:
    with pytest.raises(ValueError, match="is connected to Ray at .*, not at 10.0.0.1:6379"):
        RayReadingService(1, address="10.0.0.1:6379")


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


def test_a_node_with_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchpipe, "__version__", "9.9")
    with ray_loader(plain(), 1, 1) as loader, pytest.raises(RuntimeError, match=r"has torchpipe .*, this process 9\.9"):
        list(loader)


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"num_cpus": -1}, ValueError),
        ({"num_cpus": "2"}, TypeError),
        ({"resources": ["a"]}, TypeError),
        ({"resources": {"GPU": 1}}, ValueError),
        ({"label_selector": "pool"}, TypeError),
        ({"start_timeout": 0}, ValueError),
    ],
)
def test_arguments_out_of_range(arguments: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind, match=next(iter(arguments))):
        RayWorkers(**arguments)
    with pytest.raises(kind, match=next(iter(arguments))):
        RayReadingService(1, **arguments)


def test_arguments_of_loaders() -> None:
    with pytest.raises(TypeError, match="worker_method must be"):
        DataLoader(range(4), num_workers=1, worker_method=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="multiprocessing_context='fork'"):
        DataLoader(range(4), num_workers=1, worker_method=RayWorkers(), multiprocessing_context="fork")
    with pytest.raises(ValueError, match="num_workers"):
        RayReadingService(0)
    with pytest.raises(ValueError, match="have no meaning without device"):
        RayReadingService(1, host_prefetch=2)


MISSING = """
import sys
sys.modules["ray"] = None
from reading_services import RayReadingService
RayReadingService(1)
"""

UNREACHABLE = """
from reading_services import RayReadingService
RayReadingService(1, address="127.0.0.1:9")
"""


@pytest.mark.parametrize(
    ("script", "error"),
    [(MISSING, "ImportError: workers in Ray actors need Ray: pip install 'ray"), (UNREACHABLE, "ConnectionError")],
)
def test_without_ray_and_without_a_cluster(script: str, error: str) -> None:
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=100)
    assert done.returncode != 0
    assert error in done.stderr
