"""Attention within documents: the same as one document at a time, whatever the kernel asks for."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask, create_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

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


@given(
    length=st.sampled_from([1, 16, 127, 128, 129, 300, 513]),
    documents=st.sampled_from([1, 3, 40]),
    contiguous=st.booleans(),
    seed=st.integers(0, 99),
)
def test_the_blocks_are_those_of_the_mask_of_all_pairs(
    length: int, documents: int, contiguous: bool, seed: int
) -> None:
    segment_ids = torch.randint(0, documents, (2, length), generator=torch.Generator().manual_seed(seed))
    if contiguous:
        segment_ids = segment_ids.sort(-1, descending=True).values
    found = document_mask(segment_ids)
    dense = create_block_mask(found.mask_mod, 2, None, length, length, device="cpu")
    assert found.shape == dense.shape
    for name in ("num_blocks", "indices"):
        for kind in ("kv_", "q_", "full_kv_", "full_q_"):
            one, other = getattr(found, kind + name), getattr(dense, kind + name)
            assert one.dtype == other.dtype
            assert torch.equal(one, other), (kind, name)


class Largest(TorchFunctionMode):
    numbers = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        self.numbers = max(self.numbers, made.numel() if isinstance(made, torch.Tensor) else 0)
        return made


def test_no_matrix_of_all_pairs_is_made() -> None:
    length = 32_768
    with Largest() as largest:
        document_mask(torch.arange(length)[None] // 700)
    assert largest.numbers < 4 * length


def on_gpu() -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]:
    """Two rows of 1,024 tokens, (query, key, value), and what scaled_dot_product_attention makes of their documents."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(20, 200, (2, 20), generator=generator)
    numbers = torch.arange(1, 21)
    segment_ids = torch.stack([torch.repeat_interleave(numbers, row)[:1024] for row in sizes]).cuda()
    made = [torch.randn(2, 4, 1024, 64, generator=generator).cuda().requires_grad_() for _ in range(3)]
    same = segment_ids[:, None, :, None] == segment_ids[:, None, None]
    return segment_ids, made, scaled_dot_product_attention(*made, attn_mask=same.tril())


@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
def test_flex_attention_on_a_gpu_and_its_gradients() -> None:
    segment_ids, made, expected = on_gpu()
    found = flex_attention(*made, block_mask=document_mask(segment_ids))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    for one, other in zip(
        torch.autograd.grad(found.square().sum(), made), torch.autograd.grad(expected.square().sum(), made)
    ):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


@pytest.mark.cuda
def test_kernels_of_variable_length_on_a_gpu() -> None:
    varlen = pytest.importorskip("torch.nn.attention.varlen")  # of torch 2.10
    segment_ids, made, expected = on_gpu()
    found = documents(segment_ids)
    rows = [part.detach().bfloat16().transpose(1, 2).reshape(2048, 4, 64) for part in made]
    ends = [found.cu_seqlens] * 2 + [found.max_seqlen] * 2
    out = varlen.varlen_attn(*rows, *ends, window_size=(-1, 0)).reshape(2, 1024, 4, 64).transpose(1, 2)
    torch.testing.assert_close(out.float(), expected.detach(), rtol=0.05, atol=0.05)
