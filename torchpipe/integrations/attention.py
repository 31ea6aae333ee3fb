"""Attention within the documents of packs, from their ``segment_ids`` and on their device. Runs in the user's process.

Two forms, for two families of kernels: a block mask for FlexAttention, and the ends of documents for kernels of
variable length. Needs torch alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

__all__ = ["Documents", "document_mask", "documents"]


def document_mask(segment_ids: torch.Tensor) -> BlockMask:
    """The mask of packs for ``flex_attention``: each token sees itself and those before it in its document.

    ``segment_ids``: (batch, length), as batches of ``pack`` have them. Padding sees padding of its own row. The mask
    keeps ``segment_ids``: do not write into it before the backward pass is over.

    Raises: ValueError for another shape.
    """
    batch, length = _shape(segment_ids)

    def sees(row: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (query >= key) & (segment_ids[row, query] == segment_ids[row, key])

    return create_block_mask(sees, batch, None, length, length, device=segment_ids.device)


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
