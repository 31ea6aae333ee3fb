"""``torchpipe.DataLoader`` with one worker thread: the rest as ``threads``."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.harness.job import Job
from benchmarks.peers import threads

__all__ = ["Loader"]


class Loader(threads.Loader):
    def __init__(self, job: Job) -> None:
        super().__init__(replace(job, workers=1))
