"""How errors, drawings and states call a function."""

from __future__ import annotations

import numpy as np
import torch

from torchpipe.node.traits import callable_name


def _hidden() -> None:
    """A function of a module."""


def test_a_function_is_called_as_its_module_calls_it() -> None:
    assert [callable_name(fn) for fn in (torch.stack, torch.tensor, np.stack, _hidden)] == [
        "stack",
        "tensor",
        "stack",
        "_hidden",
    ]
    assert callable_name(str.upper) == "str.upper"
