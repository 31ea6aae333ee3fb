"""Writes what torchdata 0.9 offered, a line for each name, as in tests/torchdata/torchdata09.txt:
tests/torchdata/test_names.py holds torchpipe to it. Run in an environment with torchdata 0.9
(``make .venv-bench09/.stamp``):

    .venv-bench09/bin/python tools/torchdata_names.py > tests/torchdata/torchdata09.txt

A line is: module, name (of a class, or ``Class.method``), functional form or -, arguments with their defaults.
"""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Iterator
from typing import Any

MODULES = {
    "torchdata.datapipes.iter": None,  # None: what __all__ lists
    "torchdata.datapipes.map": None,
    "torchdata.datapipes.iter.util.distributed": ["PrefetchTimeoutError"],
    "torchdata.datapipes.utils": None,
    "torchdata.dataloader2": None,
    "torchdata.dataloader2.adapter": ["Adapter", "CacheTimeout", "Shuffle"],
    "torchdata.dataloader2.random": None,
    "torchdata.dataloader2.graph": None,
    "torchdata.dataloader2.linter": ["_check_shuffle_before_sharding"],
    "torchdata.dataloader2.utils": None,
}


def arguments_of(thing: Any) -> str:
    """The arguments of a function or a class as they are written at a call; ``-`` of anything else."""
    if inspect.isclass(thing):
        made = thing.__dict__.get("__new__")
        target = thing.__init__ if made is None else made.__func__ if isinstance(made, staticmethod) else made
    elif callable(thing):
        target = thing
    else:
        return "-"
    try:
        parameters = list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):
        return "-"
    texts: list[str] = []
    for parameter in parameters[inspect.isclass(thing) :]:
        by_name_only = parameter.kind is parameter.KEYWORD_ONLY
        if by_name_only and not any(text.startswith("*") for text in texts):
            texts.append("*")
        text = str(parameter.replace(annotation=parameter.empty, default=parameter.empty))
        if parameter.default is not parameter.empty:
            value = parameter.default
            text += f"={value.__name__ if callable(value) else repr(value)}"
        texts.append(text)
    return ", ".join(texts)


def methods_of(thing: Any) -> list[tuple[str, Any]]:
    """The public methods that a class defines itself."""
    if not inspect.isclass(thing):
        return []
    members = [(name, getattr(thing, name)) for name in sorted(vars(thing)) if not name.startswith("_")]
    return [(name, member) for name, member in members if inspect.isroutine(member)]


def forms() -> dict[Any, str]:
    """class -> its functional form."""
    from torch.utils.data.datapipes.datapipe import IterDataPipe, MapDataPipe

    return {
        given: form
        for functions in (MapDataPipe.functions, IterDataPipe.functions)
        for form, function in functions.items()
        for given in getattr(function, "args", ())
    }


def lines() -> Iterator[str]:
    modules = {name: importlib.import_module(name) for name in MODULES}
    names_of_forms = forms()
    for module_name, module in modules.items():
        listed = MODULES[module_name]
        for name in sorted(module.__all__ if listed is None else listed):
            thing = getattr(module, name)
            form = names_of_forms.get(thing, "-") if inspect.isclass(thing) else "-"
            yield f"{module_name} {name} {form} {arguments_of(thing)}".rstrip()
            for method, function in methods_of(thing):
                yield f"{module_name} {name}.{method} - {arguments_of(function)}".rstrip()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print("\n".join(lines()))
