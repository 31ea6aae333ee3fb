"""What users call wrongly is refused at once, by an error of the right type that names the parameter.

The rows are in the files beside this one, and in ``wrong_arguments`` of each ring's folder. What an error says besides
is nobody's promise.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.rings import added_by_rings
from tests.wrong_arguments import of_data, of_devices, of_iter, of_map, of_others, of_services
from tests.wrong_arguments.right import needed, others_of
from tests.wrong_arguments.rows import Row
from torchpipe.iter import IterableWrapper
from torchpipe.map import SequenceWrapper
from torchpipe.node.functional import registered

RINGS = [*added_by_rings("wrong_arguments")]
WITH_FORMS = [ring for ring in RINGS if hasattr(ring, "FORMS")]
OF_PATHS = {form for form in registered("iter") if form.startswith(("list_", "read_"))} - {"read_from_http"}.union(
    *(ring.STREAMS for ring in WITH_FORMS)
)  # these take paths in place of an input
NOTHING_WRONG = {
    "iter": {
        "sharding_filter": "torch takes any group",
        "zip": "strict is true or false of anything",
        "zip_longest": "any fill_value will do",
    },
    "map": {},
}


def forms_of(kind: str) -> dict[str, type]:
    """Torchpipe's own; tests register others."""
    return {form: cls for form, cls in registered(kind).items() if cls.__module__.startswith("torchpipe.")}


def inputs(kind: str) -> list[Row]:
    """Each form is given what is no node, a node of the other kind, and no node at all where it takes several."""
    right, other = (IterableWrapper, SequenceWrapper) if kind == "iter" else (SequenceWrapper, IterableWrapper)
    word = "IterDataPipe" if kind == "iter" else "MapDataPipe"
    rows: list[Row] = []
    for form, cls in forms_of(kind).items():
        rest = needed(kind, form)
        for wrong in ([1], 3, other([1])):
            rows.append((f"{kind} {form}: input", partial(cls, wrong, **rest), TypeError, word))
        if next(iter(inspect.signature(cls).parameters.values())).kind is inspect.Parameter.VAR_POSITIONAL:
            rows.append((f"{kind} {form}: no input", partial(cls, **rest), ValueError, "datapipe"))
            rows.append((f"{kind} {form}: second input", partial(cls, right([1]), [1], **rest), TypeError, word))
    return [
        (name, call, error, "paths" if kind == "iter" and name.split()[1].rstrip(":") in OF_PATHS else word)
        for name, call, error, word in rows
    ]


ROWS: list[Any] = [
    *inputs("iter"),
    *inputs("map"),
    *of_iter.FORMS,
    *of_iter.NODES,
    *of_map.FORMS,
    *of_map.NODES,
    *of_data.ROWS,
    *of_services.ROWS,
    *of_devices.ROWS,
    *of_others.ROWS,
    *(row for ring in RINGS for row in ring.ROWS),
]
PARAMETERS = [row if hasattr(row, "marks") else pytest.param(*row, id=row[0]) for row in ROWS]


@pytest.mark.parametrize(("name", "call", "error", "parameter"), PARAMETERS)
def test_a_wrong_argument_is_refused_by_its_name(
    name: str, call: Callable[[], Any], error: type[Exception], parameter: str
) -> None:
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error
    assert re.search(rf"\b{parameter}\b", str(caught.value)), f"{name}: {caught.value}"


@pytest.mark.parametrize("kind", ["iter", "map"])
def test_each_form_with_arguments_has_rows_or_takes_nothing_wrong(kind: str) -> None:
    rings = WITH_FORMS if kind == "iter" else []
    forms = [*(of_iter.FORMS if kind == "iter" else of_map.FORMS), *(row for ring in rings for row in ring.FORMS)]
    have = {name.split(": ")[0].removeprefix("map ") for name, *_ in forms}
    takes = {form for form, cls in forms_of(kind).items() if others_of(cls)}
    assert takes - have == {*NOTHING_WRONG[kind]}.union(*(ring.NOTHING_WRONG for ring in rings))
    assert have <= set(forms_of(kind))
