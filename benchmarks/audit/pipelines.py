"""The pipelines that are audited, under each loader at the settings that its own documentation names.

Packing: 300 documents of 5 to 60 tokens, shuffled in a buffer of 64, packed into 128 tokens, four in a batch, two
workers. Each token is a number of its own, so that ``tokens`` can say which came. Map-style: 200 images with noise that
is drawn anew whenever one is read, shuffled, eight in a batch, two workers.

Settings and their sources:

- StatefulDataLoader: what a dataset keeps, random states of a worker included, goes into a ``state_dict`` of the
  dataset's own: torchdata 0.11, torchdata/stateful_dataloader/README.md, "Saving Custom State with Map-Style Datasets"
  and "... with Iterable-Style Datasets". ``snapshot_every_n_steps`` is 1, its default.
- Hugging Face: ``to_iterable_dataset(num_shards=...)``, ``shuffle(seed, buffer_size)``, ``set_epoch``, in a
  StatefulDataLoader, which saves the dataset's ``state_dict``: docs of datasets, "Stream", "Save a dataset checkpoint
  and resume iteration". ``max_buffer_input_shards=1``: with its default of 10, datasets 5.2.0 raises an IndexError when
  the state of several workers is loaded. Its packing is ``map(batched=True)``, whose last pack of a batch is shorter.
- torchpipe: the defaults.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

from reading_services import MultiProcessingReadingService
from torchpipe import DataLoader, DataLoader2
from torchpipe.iter import IterableWrapper

DOCUMENTS, BUFFER, LENGTH = 300, 64, 128


def document(index: int) -> list[int]:
    return list(range(1 + index * 100, 1 + index * 100 + 5 + index * 37 % 56))


def tokens(batch: Any) -> list[int]:
    """The ids of a batch of packs: all tokens in it."""
    rows = [batch["tokens"]] if isinstance(batch, dict) else batch
    return [token for row in rows for token in torch.as_tensor(row).flatten().tolist() if token]


# --- shuffle buffer, packing, two workers


def packing_torchpipe(num_workers: int = 2) -> Any:
    documents = IterableWrapper(range(DOCUMENTS)).shuffle(buffer_size=BUFFER).sharding_filter().map(document)
    graph = documents.pack(LENGTH).batch(4).collate()
    loader: DataLoader2[Any] = DataLoader2(graph, reading_service=MultiProcessingReadingService(num_workers))
    loader.seed(1)
    return loader


class _Packed(IterableDataset[torch.Tensor]):
    """A shuffle buffer and packing, all of it in the state."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.begin()

    def begin(self) -> None:
        self.next = 0
        self.buffer: list[int] = []
        self.rest: list[int] = []
        self.draws: Any = None
        self.loaded = False

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        parts, part = (1, 0) if info is None else (info.num_workers, info.id)
        if not self.loaded:
            self.begin()
        self.loaded = False
        draws = random.Random(self.epoch * 1000 + part)
        if self.draws is not None:
            draws.setstate(self.draws)
        while True:
            while len(self.buffer) < BUFFER and self.next * parts + part < DOCUMENTS:
                self.buffer.append(self.next * parts + part)
                self.next += 1
            if len(self.rest) < LENGTH and self.buffer:
                self.rest += document(self.buffer.pop(draws.randrange(len(self.buffer))))
                continue
            if not self.rest:
                return
            pack, self.rest = self.rest[:LENGTH], self.rest[LENGTH:]
            self.draws = draws.getstate()
            yield torch.tensor(pack + [0] * (LENGTH - len(pack)))

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next, "buffer": list(self.buffer), "rest": list(self.rest), "draws": self.draws}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next, self.buffer, self.rest = state["next"], list(state["buffer"]), list(state["rest"])
        self.draws, self.loaded = state["draws"], True


def packing_stateful(num_workers: int = 2, epoch: int = 0) -> Any:
    torch.manual_seed(0)
    return StatefulDataLoader(_Packed(epoch), batch_size=4, num_workers=num_workers)


def _pack(rows: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
    flat = [token for row in rows["tokens"] for token in row]
    return {"tokens": [flat[at : at + LENGTH] for at in range(0, len(flat), LENGTH)]}


def _as_they_are(rows: list[Any]) -> list[Any]:
    return [row["tokens"] for row in rows]


def packing_datasets(num_workers: int = 2, epoch: int = 0) -> Any:
    import datasets

    torch.manual_seed(0)
    table = datasets.Dataset.from_dict({"tokens": [document(index) for index in range(DOCUMENTS)]})
    stream = table.to_iterable_dataset(num_shards=4).shuffle(seed=0, buffer_size=BUFFER, max_buffer_input_shards=1)
    packed = stream.map(_pack, batched=True, batch_size=50, remove_columns=["tokens"])
    packed.set_epoch(epoch)
    return StatefulDataLoader(packed, batch_size=4, num_workers=num_workers, collate_fn=_as_they_are)


# --- map-style with augmentation


class Images(Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"id": index, "image": torch.full((3, 8, 8), float(index)) + torch.rand(3, 8, 8)}


class ImagesWithState(Images):
    """The worker's random state is the dataset's."""

    def state_dict(self) -> dict[str, Any]:
        return {"random": torch.get_rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        torch.set_rng_state(state["random"])


def images_torchpipe(num_workers: int = 2) -> Any:
    torch.manual_seed(0)
    return DataLoader(Images(), batch_size=8, shuffle=True, num_workers=num_workers)


def images_stateful(num_workers: int = 2) -> Any:
    torch.manual_seed(0)
    return StatefulDataLoader(Images(), batch_size=8, shuffle=True, num_workers=num_workers)


def images_stateful_with_state(num_workers: int = 2) -> Any:
    torch.manual_seed(0)
    return StatefulDataLoader(ImagesWithState(), batch_size=8, shuffle=True, num_workers=num_workers)
