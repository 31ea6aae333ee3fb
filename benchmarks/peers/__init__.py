"""The loaders that are compared. One file each, imported only in the process that measures it.

A peer's module has ``class Loader``: ``Loader(job)``, ``iter(loader)`` for each epoch, ``close()``; and where the
library has the thing: ``state_dict()`` and ``load_state_dict(state)`` (P6), ``stages(count, number) -> iterable`` (P7).
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType

__all__ = ["PEERS", "Peer", "find_peer"]


@dataclass(frozen=True)
class Peer:
    """Where a peer is (``module``), which environment it needs, and what the tables call it."""

    module: str
    label: str
    environment: str = "bench"


PEERS = {
    "torchpipe": Peer("torchpipe_", "torchpipe"),
    "in_process": Peer("in_process", "torchpipe, in process"),
    "dataloader": Peer("torchpipe_dataloader", "torchpipe DataLoader"),
    "claims": Peer("claims", "torchpipe, claims"),
    "claims_dataloader": Peer("claims_dataloader", "torchpipe DataLoader, claims"),
    "threads": Peer("threads", "torchpipe DataLoader, threads"),
    "one_thread": Peer("one_thread", "torchpipe DataLoader, one thread"),
    "torch": Peer("torch_dataloader", "torch DataLoader"),
    "stateful": Peer("stateful", "StatefulDataLoader"),
    "nodes": Peer("nodes", "torchdata.nodes"),
    "spdl": Peer("spdl_", "SPDL"),
    "spdl_arena": Peer("spdl_arena", "SPDL, arena"),
    "spdl_dataloader": Peer("spdl_dataloader", "SPDL, get_pytorch_dataloader"),
    "spdl_chunks": Peer("spdl_chunks", "SPDL, chunks by hand"),
    "grain": Peer("grain_", "grain"),
    "mprs09": Peer("mprs09", "torchdata 0.9 MPRS", "bench09"),
    "webdataset": Peer("webdataset_", "webdataset"),
    "tables": Peer("tables", "torchpipe, in process"),
    "tables_workers": Peer("tables_workers", "torchpipe, 2 workers"),
    "pyarrow": Peer("pyarrow_", "pyarrow, then tensors"),
    "pyarrow_batches": Peer("pyarrow_batches", "pyarrow, record batches"),
    "datasets": Peer("datasets_", "HF datasets, streaming"),
    "shards": Peer("shards", "torchpipe"),
    "shards_in_process": Peer("shards_in_process", "torchpipe, in process"),
    "webdataset_in_process": Peer("webdataset_in_process", "webdataset, in process"),
    "one_shard_pieces": Peer("one_shard_pieces", "torchpipe, shard_pieces()"),
    "one_shard_whole": Peer("one_shard_whole", "torchpipe, shuffle().sharding_filter()"),
    "one_shard_webdataset": Peer("one_shard_webdataset", "webdataset"),
    "one_shard_datasets": Peer("one_shard_datasets", "HF datasets, streaming"),
    "one_shard_grain": Peer("one_shard_grain", "grain"),
    "ray": Peer("ray_", "torchpipe RayReadingService"),
    "ray_data": Peer("ray_data", "Ray Data, iter_torch_batches"),
    "generator": Peer("plain", "plain generator"),
    "builtin_map": Peer("builtin_map", "builtin map"),
    "packing_torchpipe": Peer("packing_torchpipe", "torchpipe"),
    "packing_in_process": Peer("packing_in_process", "torchpipe, in process"),
    "packing_grain": Peer("packing_grain", "grain, torchtitan's way"),
    "packing_grain_processes": Peer("packing_grain_processes", "grain, processes"),
    "packing_datasets": Peer("packing_datasets", "datasets and a generator"),
    "xla_torchpipe": Peer("xla_torchpipe", "torchpipe to_device", "xla"),
    "xla_mp_device": Peer("xla_mp_device", "MpDeviceLoader", "xla"),
    "xla_naive": Peer("xla_naive", "tensor.to in the loop", "xla"),
    "cuda_torchpipe": Peer("cuda_torchpipe", "torchpipe DataLoader, device='cuda'"),
    "cuda_torchpipe_pinned": Peer("cuda_torchpipe_pinned", "torchpipe DataLoader, pinned, copied in the loop"),
    "cuda_pinned": Peer("cuda_pinned", "torch DataLoader, pinned, copied in the loop"),
    "cuda_naive": Peer("cuda_naive", "torch DataLoader, tensor.to in the loop"),
}


def find_peer(name: str) -> ModuleType:
    """The module of peer ``name``, imported now. Raises: ValueError for an unknown name, ImportError as its library."""
    if name not in PEERS:
        raise ValueError(f"there is no peer {name!r}; there are {', '.join(PEERS)}")
    return importlib.import_module(f"benchmarks.peers.{PEERS[name].module}")
