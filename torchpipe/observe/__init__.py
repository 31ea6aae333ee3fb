"""The views of a loader: its figures and their meaning, the samples of its steps, the rates of its nodes. A ring.

``advice`` and ``outlook`` draw conclusions from ``loader.stats()``, ``text`` says figures in words, ``views`` draws
pictures, pages and live tables, ``export`` feeds other tools; ``steps`` says which samples a step has and makes it
again, ``profiling`` runs the nodes of a graph one by one; ``cli``, the command line, stands above all.

Loaders offer it as methods of one line (``torchpipe/loader/observing.py``). Besides public names, it uses these hooks:

- of both loaders ``stats()``, ``measuring``, ``look_last(weak method)``, which is called at each ``iter()``,
  and ``_position_beside()``: the position of ``state_dict()``, to go on from beside the loop;
- of an iterator ``figures_handle``: what knows the figures without keeping it alive;
- of a reading service ``local_iteration(start, substitutes_of)``: a copy of the graph, run in this process from a
  state or the start of an epoch, in which other iterators may stand for nodes; and ``exact_position(start,
  may_replay=True)``; of the one in process also how many items it makes at a time, ``_local_chunk``;
- of ``DataLoader`` its ``_samplers``, ``_coming_order(samplers)``, ``_epochs.coming``, ``_plain_dataset()`` and
  ``_must_make``; of the ranks of its batches ``torchpipe.data.ranks.batches.order_at``.
"""

from typing import TYPE_CHECKING

from torchpipe.on_demand import on_demand

if TYPE_CHECKING:
    from torchpipe.observe.advice import Advice
    from torchpipe.observe.outlook import Prediction
    from torchpipe.observe.profiles import NodeProfile, Profile, Rate
    from torchpipe.observe.steps.rows import Mixture, Rows, SourceCount, StepRows
else:
    __getattr__, __dir__ = on_demand(__name__)

__all__ = ["Advice", "Mixture", "NodeProfile", "Prediction", "Profile", "Rate", "Rows", "SourceCount", "StepRows"]
