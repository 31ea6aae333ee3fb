"""Classes of the script, in processes whose ``__main__`` has imported it, as multiprocessing does, or is another."""

from __future__ import annotations

import dataclasses
import pickle
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from torchpipe.state import script_classes
from torchpipe.state.pickling import ImagePickler, cloud_dumps, dumps

SCRIPT = """
import collections
import dataclasses
import enum

RATE = 0

class Point(collections.namedtuple("Point", "x y")):
    pass

@dataclasses.dataclass
class Record:
    path: str
    tags: list = dataclasses.field(default_factory=list)

class Base:
    rate = 0

class Config(Base):
    rate = 0

    def seen(self):
        return RATE, self.rate, self.kind() is Config

    def kind(self):
        return Config

class Split(enum.Enum):
    TRAIN = 1
    TEST = 2
    FIRST = 1

def same_name(base):
    return type("Made", (base,), {"__module__": __name__, "rate": 1})

Made = same_name(Base)
Other = same_name(Base)
local = lambda: 0
"""


class Processes:
    """The main process and a worker, by their ``__main__``: what is done in one sees the classes of that one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.main, self.worker = self._imported("__main__"), self._imported("__mp_main__")
        self.go_to(self.main)

    def _imported(self, name: str) -> Any:
        module = ModuleType(name)
        exec(SCRIPT, vars(module))
        return module

    def go_to(self, process: Any) -> None:
        self._monkeypatch.setitem(sys.modules, "__main__", process)
        self._monkeypatch.setattr(script_classes, "_THIS", process.__name__.encode())

    def sent(self, value: Any, *, begins: bool = True) -> Any:
        """``value`` of the main process, as it is in the worker, where one goes on."""
        data = cloud_dumps(value, ImagePickler) if begins else cloud_dumps(value)
        self.go_to(self.worker)
        return pickle.loads(data)


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Processes:
    return Processes(monkeypatch)


def test_a_process_begins_with_the_class_of_its_script_as_the_main_one_has_it(processes: Processes) -> None:
    main, worker = processes.main, processes.worker
    main.RATE = main.Config.rate = main.Base.rate = 5  # the same as the base's: that is sent, too
    config, split, local = processes.sent((main.Config(), main.Split.TRAIN, main.local))
    assert type(config) is worker.Config
    assert config.seen() == (5, 5, True)
    assert split is worker.Split.TRAIN is worker.Split.FIRST
    assert local() == 0


def test_such_a_class_comes_back_by_its_name_and_nothing_in_it_changes(processes: Processes) -> None:
    main = processes.main
    before = {name: vars(main.Config)[name] for name in ("seen", "kind", "rate")}
    config = processes.sent(main.Config())
    for data in (dumps(config), dumps((config, lambda: 0))):
        processes.go_to(main)
        loaded = pickle.loads(data)
        assert type(loaded[0] if type(loaded) is tuple else loaded) is main.Config
        assert all(vars(main.Config)[name] is value for name, value in before.items())
        processes.go_to(processes.worker)


def test_a_pickle_that_no_process_begins_with_changes_no_class(processes: Processes) -> None:
    main, worker = processes.main, processes.worker
    main.Config.rate = 5  # an old state's
    config, _ = processes.sent((main.Config(), main.local), begins=False)
    assert type(config) is worker.Config
    assert worker.Config.rate == 0


@pytest.mark.parametrize("begins", [True, False])
@pytest.mark.parametrize("change", ["bases", "members", "no class", "a name of two"])
def test_a_name_that_is_another_class_there_is_not_taken_for_it(
    change: str, begins: bool, processes: Processes
) -> None:
    main, worker = processes.main, processes.worker
    name = "Split" if change == "members" else "Config"
    if change == "bases":
        exec("class Config: rate = 2", vars(main))
    elif change == "members":
        exec("class Split(enum.Enum): TRAIN = 1", vars(main))
    elif change == "no class":
        worker.Config = 3
    else:
        name = "Other"
    kind, theirs = getattr(main, name), getattr(worker, name)
    before = dict(vars(theirs)) if isinstance(theirs, type) else {}
    loaded = processes.sent((kind, main.local), begins=begins)[0]
    assert loaded not in (theirs, worker.Made)
    assert getattr(worker, name) is theirs, "its name stays"
    assert not before or dict(vars(theirs)) == before


@pytest.mark.parametrize("begins", [True, False])
def test_a_class_that_is_not_there_has_its_name_from_the_image_on(begins: bool, processes: Processes) -> None:
    main, worker = processes.main, processes.worker
    exec("class Late:\n    def seen(self): return RATE", vars(main))
    main.RATE = 7
    late = processes.sent(main.Late(), begins=begins)
    assert late.seen() == 7
    assert getattr(worker, "Late", None) is (type(late) if begins else None)


def test_a_class_with_a_base_of_its_own_name_and_one_with_fields(processes: Processes) -> None:
    main, worker = processes.main, processes.worker
    image = cloud_dumps((main.Point(1, 2), main.Record), ImagePickler)
    processes.go_to(worker)
    point, record = pickle.loads(image)
    assert type(point) is worker.Point
    assert record is worker.Record
    assert all(field.default is dataclasses.MISSING for field in dataclasses.fields(record))


def test_an_image_that_is_loaded_where_it_was_made_changes_nothing(processes: Processes) -> None:
    main = processes.main
    image = cloud_dumps(main.Config(), ImagePickler)
    method, main.Config.rate = main.Config.seen, 7
    assert type(pickle.loads(image)) is main.Config
    assert (main.Config.seen, main.Config.rate) == (method, 7)


def test_modules_of_a_class_of_their_own_go_by_their_names() -> None:
    """torch has some, and cloudpickle takes a function that has ``torch`` and ``self.classes`` to need one."""

    def labels(folder: Any) -> Any:
        return torch.zeros(len(folder.classes)), folder.ops, torch.backends.cudnn

    sent: Any = pickle.loads(cloud_dumps(labels))
    assert sent(SimpleNamespace(classes=[0, 1], ops=3))[1:] == (3, torch.backends.cudnn)
    modules = [torch.classes, torch.ops, torch.backends, torch]
    for made in (dumps(modules), cloud_dumps(modules)):
        assert all(one is other for one, other in zip(pickle.loads(made), modules, strict=True))
