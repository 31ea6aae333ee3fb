"""Attention within the documents of packs, from their ``segment_ids`` and on their device. Runs in the user's process.

Two forms, for two families of kernels: a block mask for FlexAttention, and the ends of documents for kernels of
variable length. Needs torch alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.attention.flex_attention import BlockMask

_BLOCK = 128  # tokens to a side, as kernels have it

__all__ = ["Documents", "document_mask", "documents"]


def document_mask(segment_ids: torch.Tensor) -> BlockMask:
    """The mask of packs for ``flex_attention``: each token sees itself and those before it in its document.

    ``segment_ids``: (batch, length), as batches of ``pack`` have them. Padding sees padding of its own row. The mask
    keeps ``segment_ids``: do not write into it before the backward pass is over. It is made block by block, without
    a matrix of all pairs of tokens.

    Raises: ValueError for another shape.
    """
    batch, length = _shape(segment_ids)
    blocks = -(-length // _BLOCK)
    ids, order = segment_ids.sort(stable=True)
    numbers = torch.nn.functional.pad((ids[:, 1:] != ids[:, :-1]).cumsum(1), (1, 0))
    numbers = torch.empty_like(numbers).scatter_(1, order, numbers)  # of documents, below the length
    numbers = torch.nn.functional.pad(numbers, (0, blocks * _BLOCK - length), value=length)
    by_block = numbers.reshape(batch, blocks, _BLOCK)
    shared = []
    for block in by_block.unbind(1):
        within = torch.zeros(batch, length + 1, dtype=torch.bool, device=segment_ids.device).scatter_(1, block, True)
        shared.append(within.gather(1, numbers).reshape(batch, blocks, _BLOCK).any(2))
    first, last = by_block.aminmax(dim=2)
    alone = torch.where(first == last, first, -1)  # the document of a block that is in one
    full = (alone[:, :, None] == alone[:, None]).tril(-1) & (alone >= 0)[:, None]
    partial = torch.stack(shared, 2).tril() & ~full

    def sees(row: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (query >= key) & (segment_ids[row, query] == segment_ids[row, key])

    mask: BlockMask = BlockMask.from_kv_blocks(
        *_in_order(partial), *_in_order(full), BLOCK_SIZE=_BLOCK, mask_mod=sees, seq_lengths=(length, length)
    )
    return mask


def _in_order(wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The number of wanted blocks in each row of (batch, blocks, blocks), and the numbers of all, the wanted first."""
    blocks = wanted[:, None].int()
    return blocks.sum(-1).int(), blocks.argsort(dim=-1, descending=True, stable=True).int()


@dataclass(frozen=True)
class Documents:
    """The documents of a batch of packs whose rows stand one after the other: (batch * length,) tokens.

    ``cu_seqlens``: int32, where each document begins, and the end. ``max_seqlen``: the longest one. ``position_ids``:
    int64, of shape (batch, length), from 0 in each document. The padding of a row is one document.
    """

    cu_seqlens: torch.Tensor
    max_seqlen: int
    position_ids: torch.Tensor

    def for_transformers(self) -> dict[str, torch.Tensor | int]:
        """The arguments of a transformers model with ``flash_attention``, beside ``input_ids`` of shape (1, tokens)."""
        ends, longest = self.cu_seqlens, self.max_seqlen
        positions = self.position_ids.reshape(1, -1)
        return {
            **{"position_ids": positions, "cu_seq_lens_q": ends, "cu_seq_lens_k": ends},
            **{"max_length_q": longest, "max_length_k": longest},
        }


def documents(segment_ids: torch.Tensor) -> Documents:
    """The documents of a batch of packs, for ``varlen_attn``, ``flash_attn_varlen_func`` and transformers.

    ``segment_ids``: (batch, length). Waits for its device: such kernels ask for ``max_seqlen`` as a number.

    Raises: ValueError for another shape.
    """
    _shape(segment_ids)
    begins = torch.ones_like(segment_ids, dtype=torch.bool)
    begins[:, 1:] = segment_ids[:, 1:] != segment_ids[:, :-1]
    places = torch.arange(segment_ids.numel(), device=segment_ids.device).reshape(segment_ids.shape)
    positions = places - places.where(begins, 0).flatten().cummax(0).values.reshape(segment_ids.shape)
    starts = begins.flatten().nonzero().flatten()
    cu_seqlens = torch.cat([starts, starts.new_tensor([segment_ids.numel()])]).int()
    return Documents(cu_seqlens, int(cu_seqlens.diff().max()), positions)


def _shape(segment_ids: torch.Tensor) -> tuple[int, int]:
    if segment_ids.ndim != 2 or not segment_ids.numel():
        raise ValueError(
            f"segment_ids is to have the shape (batch, length), got {tuple(segment_ids.shape)}: stack the packs"
        )
    return segment_ids.shape[0], segment_ids.shape[1]
