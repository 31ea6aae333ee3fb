"""The images of ``pipelines`` under grain. A module of its own: grain starts its processes anew, and they import it.

Settings and their sources: see ``pipelines``.
"""

from __future__ import annotations

from typing import Any

import grain
import numpy as np


def _noisy(index: int, draws: np.random.Generator) -> dict[str, Any]:
    return {"id": index, "image": np.full((3, 8, 8), float(index)) + draws.random((3, 8, 8))}


def images_grain(num_workers: int = 2, epoch: int = 0) -> Any:
    images: Any = grain.MapDataset.source(range(200))  # type: ignore[arg-type]
    batches = images.seed(epoch).shuffle().random_map(_noisy).batch(8)
    options = grain.MultiprocessingOptions(num_workers=num_workers)
    return batches.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)).mp_prefetch(options)
