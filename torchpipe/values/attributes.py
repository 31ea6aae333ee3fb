"""The attributes of a dataset, and of datasets that it holds: the same objects, to be put back.

Runs in every process.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from torch.utils.data import Dataset

__all__ = ["Attributes", "attributes_of", "put_attributes"]

Attributes: TypeAlias = list[tuple[Any, dict[str, Any]]]
"""[(dataset, its attributes), ...]"""


def put_attributes(attributes: Attributes) -> None:
    """Put back what :func:`attributes_of` gave: the same objects."""
    for owner, its in attributes:
        present: dict[str, Any] = owner.__dict__
        present.clear()
        present.update(its)


def attributes_of(dataset: Any) -> Attributes:
    """The attributes of the dataset, and of datasets that it holds."""
    found: Attributes = []
    left = [dataset]
    while left:
        owner = left.pop()
        if not isinstance(owner, Dataset) or any(owner is other for other, _ in found):
            continue
        found.append((owner, dict(vars(owner))))
        for value in vars(owner).values():
            held = value if isinstance(value, list | tuple) else (value,)
            left += [item for item in held if isinstance(item, Dataset)]
    return found
