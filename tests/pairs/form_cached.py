"""Chains kept by ``cache(path)``, of which one thing changes: what is read then must not be the old items.

The thing is an argument of one of the steps, which may be a path, a function's code, a value bound to one, or a weight;
or the files that the source names.
"""

from __future__ import annotations

import random
import re
import shutil
import zlib
from pathlib import Path

from tests.exact import exact
from tests.pairs.form_chains import Chain, build, kinds_of, name_of
from tests.pairs.form_material import WRITTEN_BY_CHAINS, rewritten_files
from tests.pairs.form_rules import alone, may_be_refused
from tests.pairs.forms import FORMS, NUMBERS
from tests.pairs.loader_runs import seed_all, unchanged_process
from torchpipe import iterate

__all__ = ["check_changed", "check_rewritten", "names_files"]

_UNSEEN = "cannot tell whether that has changed"
_NEVER_BEHIND = {"main", "dispatches"}  # a cache


def cached_part(chain: Chain) -> Chain:
    """As far as a cache may stand behind it."""
    end = next((at for at, (key, _) in enumerate(chain) if FORMS[key].traits & _NEVER_BEHIND), len(chain))
    while end and kinds_of(chain[:end])[-1].startswith(("open ", "map of ")):
        end -= 1
    return chain[:end]


def _items(chain: Chain) -> list[str]:
    for name in WRITTEN_BY_CHAINS:
        if name != "cached":
            shutil.rmtree(name, ignore_errors=True)
    seed_all()
    with iterate(build(chain).cache("cached", chunk_items=3, allow_pickle=True)) as stream:
        return [exact(item) for item in stream]


def _empty() -> None:
    shutil.rmtree("cached", ignore_errors=True)


def check_changed(chain: Chain, *, last: bool = False) -> str:
    """With another number of one step, of such a one that it makes other items; ``last``: with each of the last step.

    Returns "changed", "the same" if no number makes others, or why it says nothing. Raises: AssertionError if old items
    are read.
    """
    chain = cached_part(chain)
    if not chain or alone(chain):
        return "not cached"
    chance = random.Random(zlib.crc32(name_of(chain).encode()))
    places = [len(chain) - 1] if last else chance.sample(range(len(chain)), len(chain))
    others = [other for place in places for other in _changed(chain, place, chance, all_numbers=last)]
    outcome, before, old = "the same", chain, None
    _empty()
    with unchanged_process():
        for changed in [chain, *(other for other in others if not alone(other))]:
            try:
                found = _items(changed)
                _empty()
                expected = _items(changed)
            except Exception as error:
                return _refusal(changed, error)
            assert found == expected, f"the cache of {name_of(before)} gives old items for {name_of(changed)}"
            if old is not None and expected != old:
                outcome = "changed"
                if not last:
                    break
            before, old = changed, expected
    return outcome


def _changed(chain: Chain, place: int, chance: random.Random, *, all_numbers: bool) -> list[Chain]:
    key, number = chain[place]
    others = [one for one in NUMBERS if one != number]
    return [
        (*chain[:place], (key, other), *chain[place + 1 :])
        for other in (others if all_numbers else [chance.choice(others)])
    ]


def names_files(chain: Chain) -> bool:
    """Are all files those that the source names? Others, that functions name, the cache does not see, as it says."""
    return "files" in FORMS[chain[0][0]].traits and not any(key.startswith("map/path") for key, _ in chain)


def check_rewritten(chain: Chain) -> str:
    """With other contents of the files that the source names."""
    chain = cached_part(chain)
    if not chain or alone(chain):
        return "not cached"
    _empty()
    with unchanged_process():
        try:
            old = _items(chain)
            with rewritten_files(Path()):
                found = _items(chain)
                _empty()
                expected = _items(chain)
        except Exception as error:
            return _refusal(chain, error)
    assert found == expected, f"the cache of {name_of(chain)} gives items of the old files"
    return "changed" if expected != old else "the same"


def _refusal(chain: Chain, error: Exception) -> str:
    if isinstance(error, TypeError) and re.search(_UNSEEN, str(error)):
        return "needs a version"
    if (refusal := may_be_refused(chain, error)) is None:
        raise error
    return f"refused: {refusal.what}"
