"""The properties of a tensor besides its values, which alone are moved: its class, attributes and ``requires_grad``."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from torchpipe.compat.torch_private import WITHOUT_OVERRIDES

__all__ = ["Kind", "is_wrapper", "kind_of", "restored", "values_of"]

Kind: TypeAlias = tuple[type[torch.Tensor], bool, dict[str, Any]]  # class, requires_grad, attributes

_PLAIN_DISPATCH: Any = torch.Tensor.__torch_dispatch__  # of classes whose values are in themselves


def is_wrapper(tensor: torch.Tensor) -> bool:
    """True for a class whose values are not in the tensor itself, but in others that it holds."""
    return hasattr(tensor, "__tensor_flatten__") or type(tensor).__torch_dispatch__ is not _PLAIN_DISPATCH


def values_of(tensor: torch.Tensor) -> torch.Tensor:
    """The same values as a tensor without a class of its own."""
    if type(tensor) is not torch.Tensor:
        with WITHOUT_OVERRIDES():
            tensor = tensor.detach().as_subclass(torch.Tensor)
    return tensor.resolve_conj().resolve_neg()


def kind_of(tensor: torch.Tensor) -> Kind | None:
    """The properties that :func:`values_of` has taken from the tensor; None if nothing."""
    return None if type(tensor) is torch.Tensor else (type(tensor), tensor.requires_grad, dict(vars(tensor)))


def restored(tensor: torch.Tensor, kind: Kind | None) -> torch.Tensor:
    """Plain values as a tensor of ``kind``, over the same memory."""
    if kind is None:
        return tensor
    made_by, requires_grad, attributes = kind
    if issubclass(made_by, torch.nn.Parameter):
        made: torch.Tensor = torch.nn.Parameter(tensor, requires_grad)
    else:
        made = tensor.as_subclass(made_by).requires_grad_(requires_grad)
    made.__dict__.update(attributes)
    return made
