"""Attention within documents: the same as one document at a time, whatever the kernel asks for."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from torchpipe.integrations.attention import document_mask, documents
from torchpipe.iter import IterableWrapper

LENGTH = 16
SIZES = st.lists(st.integers(1, 20), min_size=1, max_size=12)


def batch_of(sizes: list[int], strategy: Any = "best_fit") -> dict[str, torch.Tensor]:
    packs = list(IterableWrapper([torch.arange(size) for size in sizes]).pack(LENGTH, strategy=strategy))
    return {name: torch.stack([pack[name] for pack in packs]) for name in ("tokens", "segment_ids", "positions")}


def runs(segment_ids: torch.Tensor) -> list[tuple[int, int, int]]:
    """(row, begin, end) of each document and of each row's padding."""
    found = []
    for row, ids in enumerate(segment_ids.tolist()):
        cuts = [0, *(n for n in range(1, LENGTH) if ids[n] != ids[n - 1]), LENGTH]
        found += [(row, begin, end) for begin, end in itertools.pairwise(cuts)]
    return found


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
@pytest.mark.parametrize("strategy", ["concat", "best_fit"])
def test_flex_attention_is_that_of_each_document_alone(strategy: str) -> None:
    segment_ids = batch_of([3, 20, 7, 16, 1, 1, 5, 9], strategy)["segment_ids"]
    q, k, v = torch.randn(3, len(segment_ids), 2, LENGTH, 8, generator=torch.Generator().manual_seed(0))
    alone = torch.empty_like(q)
    for row, begin, end in runs(segment_ids):
        query, key, value = (item[row, :, begin:end] for item in (q, k, v))
        alone[row, :, begin:end] = scaled_dot_product_attention(query, key, value, is_causal=True)
    torch.testing.assert_close(flex_attention(q, k, v, block_mask=document_mask(segment_ids)), alone)


@given(SIZES)
def test_both_forms_have_the_same_documents(sizes: list[int]) -> None:
    batch = batch_of(sizes)
    segment_ids = batch["segment_ids"]
    whole = runs(segment_ids)
    found = documents(segment_ids)
    assert found.cu_seqlens.dtype == torch.int32
    assert found.cu_seqlens.tolist() == [row * LENGTH + begin for row, begin, _ in whole] + [segment_ids.numel()]
    assert found.max_seqlen == max(end - begin for _, begin, end in whole)
    used = segment_ids > 0
    assert torch.equal(found.position_ids[used], batch["positions"][used].long())
    wanted = torch.zeros(len(segment_ids), LENGTH, LENGTH, dtype=torch.bool)
    for row, begin, end in whole:
        wanted[row, begin:end, begin:end] = torch.ones(end - begin, end - begin, dtype=torch.bool).tril()
    shape = (len(segment_ids), 1, LENGTH, LENGTH)
    assert torch.equal(create_mask(document_mask(segment_ids).mask_mod, *shape, device="cpu")[:, 0], wanted)


@pytest.mark.parametrize("shape", [(LENGTH,), (0, LENGTH), (2, 0), (1, 2, 3)])
@pytest.mark.parametrize("made", [document_mask, documents])
def test_ids_of_one_pack_are_refused(made: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="stack the packs"):
        made(torch.zeros(shape, dtype=torch.int32))
