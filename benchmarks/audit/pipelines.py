"""The pipelines that are audited, under each loader at the settings that its own documentation names.

Packing: 300 documents of 5 to 60 tokens, shuffled in a buffer of 64, packed into 128 tokens, four in a batch, two
workers. Each token is a number of its own, so that ``tokens`` can say which came. Map-style: 200 images with noise that
is drawn anew whenever one is read, shuffled, eight in a batch, two workers. Tar shards: eight files of 25 texts in
webdataset's layout, files shuffled and samples in a buffer of 32, eight in a batch, two workers.

Settings and their sources:

- StatefulDataLoader: what a dataset keeps, random states of a worker included, goes into a ``state_dict`` of the
  dataset's own: torchdata 0.11, torchdata/stateful_dataloader/README.md, "Saving Custom State with Map-Style Datasets"
  and "... with Iterable-Style Datasets". ``snapshot_every_n_steps`` is 1, its default.
- Hugging Face: ``to_iterable_dataset(num_shards=...)``, ``shuffle(seed, buffer_size)``, ``set_epoch``, in a
  StatefulDataLoader, which saves the dataset's ``state_dict``: docs of datasets, "Stream", "Save a dataset checkpoint
  and resume iteration". ``max_buffer_input_shards=1``: with its default of 10, datasets 5.2.0 raises an IndexError when
  the state of several workers is loaded. Its packing is ``map(batched=True)``, whose last pack of a batch is shorter.
  A resume fills the shuffle buffer anew: docstring of ``IterableDataset.state_dict``.
  Tar shards are read by ``load_dataset("webdataset", streaming=True)``: docs of datasets, "Load", "WebDataset".
- torchdata.nodes: ``ParallelMapper`` in its default order over a ``SamplerWrapper``, with ``Loader`` around it:
  torchdata 0.11, the docstrings of torchdata/nodes, which count epochs up by ``set_epoch`` and keep the epoch in the
  state. No node draws random numbers for its user, so the function seeds by epoch and index.
- grain: ``MapDataset.seed().shuffle().random_map()``, whose generator belongs to the index, ``mp_prefetch``; the state
  is the iterator's ``get_state``: docs of grain 0.2.18, "Dataset basics" and "Transformations".
- webdataset: ``WebDataset(shardshuffle=...).shuffle(...).batched(...)`` in a ``WebLoader``, as its README and issue 350
  say, ``detshuffle`` and a seed for each epoch so that two runs are alike. It has no state, and its author says in
  issue 271 that the user has to keep track. So the same dataset stands in a StatefulDataLoader as well, which reads
  again up to where it was (torchdata/stateful_dataloader/README.md), and once more in a dataset whose state counts.
- torchpipe: the defaults.
"""

from __future__ import annotations

import io
import random
import tarfile
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

from reading_services import MultiProcessingReadingService
from torchpipe import DataLoader, DataLoader2
from torchpipe.iter import IterableWrapper, PathList

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


class _Keys(Sampler[int]):
    """Shuffled indices, each with the epoch in front of its last three digits."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(200, generator=torch.Generator().manual_seed(self.epoch))
        return (self.epoch * 1000 + index for index in order.tolist())


def _seeded(key: int) -> dict[str, Any]:
    """An image with the noise that belongs to its index and epoch."""
    index = key % 1000
    noise = torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(key))
    return {"id": index, "image": torch.full((3, 8, 8), float(index)) + noise}


def images_nodes(num_workers: int = 2) -> Any:
    from torch.utils.data import default_collate
    from torchdata.nodes import Batcher, Loader, Mapper, ParallelMapper, SamplerWrapper

    node: Any = ParallelMapper(SamplerWrapper(_Keys()), _seeded, num_workers=num_workers, method="process")
    return Loader(Mapper(Batcher(node, 8, drop_last=False), default_collate))


# --- tar shards, shuffled


def shards() -> list[str]:
    """Files of samples ``NNN.txt``, made when they are first asked for."""
    folder = Path(tempfile.gettempdir()) / "torchpipe-audit-shards"
    if not folder.is_dir():
        made = Path(tempfile.mkdtemp(dir=folder.parent))
        for shard in range(8):
            with tarfile.open(made / f"{shard}.tar", "w") as archive:
                for index in range(shard * 25, shard * 25 + 25):
                    member = tarfile.TarInfo(f"{index:03}.txt")
                    member.size = len(text := f"text {index}".encode())
                    archive.addfile(member, io.BytesIO(text))
        made.rename(folder)
    return [str(path) for path in sorted(folder.glob("*.tar"))]


def _read(sample: dict[str, Any]) -> dict[str, Any]:
    text = sample["txt"]
    return {"key": sample["__key__"], "text": text.decode() if isinstance(text, bytes) else text}


def _listed(samples: list[Any]) -> list[Any]:
    return samples


def shards_torchpipe(num_workers: int = 2) -> Any:
    files = PathList(shards()).shuffle(buffer_size=8).sharding_filter()
    graph = files.read_webdataset(decode=False).map(_read).shuffle(buffer_size=32).batch(8)
    loader: DataLoader2[Any] = DataLoader2(graph, reading_service=MultiProcessingReadingService(num_workers))
    loader.seed(1)
    return loader


def _webdataset(epoch: int) -> Any:
    import webdataset

    dataset = webdataset.WebDataset(shards(), shardshuffle=8, detshuffle=True, seed=epoch)
    return dataset.compose(webdataset.detshuffle(32, 32, seed=epoch)).map(_read)


def shards_webdataset(num_workers: int = 2, epoch: int = 0) -> Any:
    import webdataset

    batches = _webdataset(epoch).batched(8, collation_fn=_listed)
    return webdataset.WebLoader(batches, batch_size=None, num_workers=num_workers)


def shards_webdataset_stateful(num_workers: int = 2, epoch: int = 0) -> Any:
    return StatefulDataLoader(_webdataset(epoch), batch_size=8, num_workers=num_workers, collate_fn=_listed)


class _Counted(IterableDataset[dict[str, Any]]):
    """webdataset's samples; the state is how many a worker has given, and they are read again up to there."""

    def __init__(self, epoch: int) -> None:
        self.samples = _webdataset(epoch)
        self.given = self.loaded = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self.given, self.loaded = self.loaded, 0
        for sample in islice(self.samples, self.given, None):
            self.given += 1
            yield sample

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.loaded = state["given"]


def shards_webdataset_counted(num_workers: int = 2, epoch: int = 0) -> Any:
    return StatefulDataLoader(_Counted(epoch), batch_size=8, num_workers=num_workers, collate_fn=_listed)


def shards_datasets(num_workers: int = 2, epoch: int = 0) -> Any:
    import datasets

    stream = datasets.load_dataset("webdataset", data_files={"train": shards()}, split="train", streaming=True)
    stream = stream.shuffle(seed=0, buffer_size=32, max_buffer_input_shards=1).map(_read, remove_columns=["txt"])
    stream.set_epoch(epoch)
    return StatefulDataLoader(stream, batch_size=8, num_workers=num_workers, collate_fn=_listed)
