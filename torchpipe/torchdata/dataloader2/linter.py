"""``torchdata.dataloader2.linter``: is a stream shuffled before it is divided?"""

from torchpipe.graph.linter import check_shuffle_before_sharding as _check_shuffle_before_sharding  # noqa: F401

__all__: list[str] = []  # torchdata's one name here begins with an underscore
