"""The workloads: what is built, how each item is checked, what is measured. One a file, run in the measured process."""

from __future__ import annotations

import importlib
from types import ModuleType

__all__ = ["SCALING", "WORKLOADS", "find_workload"]

WORKLOADS = {
    "p1": "p1_small_items",
    "p2": "p2_dict_batches",
    "p2n": "p2n_numpy_batches",
    "p3": "p3_images",
    "p3c": "p3c_images_copied",
    "p4": "p4_jpeg",
    "p5": "p5_start_and_close",
    "p5s": "p5s_start_with_spawn",
    "p6": "p6_resume",
    "p7": "p7_stage_cost",
    "p8": "p8_device",
    "p8c": "p8c_cuda",
    "p9": "p9_memory",
    "p10": "p10_map_style",
    "p11": "p11_made_images",
    "p12": "p12_jpeg_folder",
    "p13": "p13_in_process",
    "p14": "p14_turn_around",
    "p14f": "p14f_turn_around_forkserver",
    "p14s": "p14s_turn_around_spawn",
    "p15": "p15_resume_shuffled",
    "p16": "p16_threads",
    "p16p": "p16p_python_threads",
    "p17": "p17_packing",
    "p18": "p18_parquet",
    "p18r": "p18r_parquet_resume",
    "p19": "p19_tar_images",
    "p19s": "p19s_tar_samples",
    "p19r": "p19r_tar_resume",
    "p20": "p20_measuring",
    "p21": "p21_ray_dict_batches",
    "p22": "p22_ray_images",
    "p23": "p23_ray_jpeg",
    "p24": "p24_one_shard",
}

# Measured by scaling.py, at several sizes.
SCALING = {"scale_workers": "scale_workers", "scale_item_size": "scale_item_size"}


def find_workload(name: str) -> ModuleType:
    """The module of workload ``name``: it has ``TITLE``, ``UNIT``, ``PEERS`` and ``run(peer, seconds) -> dict``."""
    known = {**WORKLOADS, **SCALING}
    if name not in known:
        raise ValueError(f"there is no workload {name!r}; there are {', '.join(known)}")
    return importlib.import_module(f"benchmarks.workloads.{known[name]}")
