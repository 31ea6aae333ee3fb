"""Records of one batch: have they the same fields?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["check_same_fields"]


def check_same_fields(form: str, samples: Sequence[Mapping[Any, Any]]) -> None:
    """Raises: KeyError, with the field and the sample, unless all dicts have the fields of the first one."""
    first = samples[0].keys()
    kinds = set(map(type, samples))
    if kinds == {dict} and all(map(first.__eq__, [sample.keys() for sample in samples])):  # 3 us for 32 samples
        return
    for number, sample in enumerate(samples):
        if not isinstance(sample, Mapping):
            raise TypeError(f"{form} got dicts, and a {type(sample).__name__} as sample {number} of {len(samples)}")
        if sample.keys() == first:
            continue
        lacking = [name for name in first if name not in sample]
        added = [name for name in sample if name not in first]
        if not lacking and not added:  # keys of other kinds of dicts, which do not compare
            continue
        what = f"lacks the field {lacking[0]!r}" if lacking else f"has the field {added[0]!r}"
        other = "has" if lacking else "has not"
        raise KeyError(
            f"{form}: sample {number} of {len(samples)} {what}, which sample 0 {other}: give all samples of a batch "
            "the same fields, or remove fields that some samples lack"
        )
