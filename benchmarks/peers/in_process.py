"""torchpipe without worker processes: what the same graph costs where nothing has to be transported."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.harness.job import Job
from benchmarks.peers import torchpipe_

__all__ = ["Loader"]


class Loader(torchpipe_.Loader):
    def __init__(self, job: Job) -> None:
        super().__init__(replace(job, workers=0))
