"""The picture of the demo: the loss over the steps with what happened, and where each node of the graph ran."""

from __future__ import annotations

import itertools
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from examples.digits.data import TRAIN_DIGITS
from examples.digits.lineage import Kills, Run

__all__ = ["draw_picture"]

_INK, _PALE, _RED, _GREEN, _BLUE = "#1e293b", "#94a3b8", "#dc2626", "#059669", "#2563eb"
_SECTIONS = ("#dbeafe", "#fef9c3", "#dcfce7")  # a colour for each kind of process
_COLUMNS, _ROW = 5, 19


def draw_picture(path: Path, reference: Run, interrupted: Run, kills: Kills) -> None:
    """Write the picture as PNG (or what the suffix of ``path`` says)."""
    figure, (losses, places) = plt.subplots(2, 1, figsize=(10, 7), height_ratios=(3, 2), layout="constrained")
    _draw_losses(losses, reference, interrupted, kills)
    _draw_places(places, interrupted.starts[-1]["plan"])
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _draw_losses(axes: Axes, reference: Run, interrupted: Run, kills: Kills) -> None:
    def line(run: Run, **style: object) -> None:
        axes.plot([step["step"] for step in run.steps], [step["loss"] for step in run.steps], **style)

    def mark(step: int, height: float, text: str, color: str, *, left: bool = False) -> None:
        axes.axvline(step, color=color, linewidth=1.2)
        axes.annotate(text, (step + (-2 if left else 2), top * height), color=color, ha="right" if left else "left")

    line(reference, color=_PALE, linewidth=5, label="left alone")
    line(interrupted, color=_BLUE, linewidth=1.3, label="killed twice")
    top = axes.get_ylim()[1]
    replaced_at, resumed_at = interrupted.restarts_seen_at[0], interrupted.starts[-1]["step"]
    mark(kills.worker_at, 0.88, f"a worker is SIGKILLed\n(replaced by step {replaced_at})", _RED)
    mark(kills.process_at, 0.7, "the training process\nis SIGKILLed", _RED)
    mark(resumed_at, 0.56, f"a new one goes on from the\ncheckpoint (step {resumed_at})", _GREEN, left=True)
    axes.axvspan(resumed_at, kills.process_at, color=_GREEN, alpha=0.12)
    title = f"Training on {TRAIN_DIGITS:,} real digits: the run that was killed twice is the run that was left alone"
    axes.set(xlabel="step", ylabel="training loss", title=title, xlim=(0, len(reference.steps) + 1), ylim=(0, top))
    axes.legend(loc="upper right", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_places(axes: Axes, plan: str) -> None:
    """The sections of ``loader.explain()``: rows of boxes for each."""
    axes.set_axis_off()
    axes.set(xlim=(0, 100), ylim=(0, 100))
    sections: list[tuple[str, list[str]]] = []
    for text in plan.splitlines():
        if not text.startswith(" "):
            sections.append((text, []))
        else:
            sections[-1][1].append(text)
    y = 94.0
    for (title, lines), color in zip(sections, itertools.cycle(_SECTIONS)):
        axes.text(0, y, title, color=_INK, fontweight="bold", fontsize=10)
        rows = -(-len(lines) // _COLUMNS)
        _draw_boxes(axes, [_label(text) for text in lines], y - 15, color)
        y -= 15 + rows * _ROW


def _draw_boxes(axes: Axes, names: list[str], top: float, color: str) -> None:
    """Boxes in rows below ``top``, each with an arrow to the next."""
    places = [(9 + 20.0 * (n % _COLUMNS), top - _ROW * (n // _COLUMNS)) for n in range(len(names))]
    style = {"boxstyle": "round,pad=0.45", "facecolor": color, "edgecolor": _PALE}
    boxes = [
        axes.text(*place, name, ha="center", va="center", fontsize=8, color=_INK, bbox=style)
        for place, name in zip(places, names)
    ]
    for (start, end), (one, other) in zip(itertools.pairwise(places), itertools.pairwise(boxes)):
        arrow = {"arrowstyle": "->", "color": _INK, "patchB": other.get_bbox_patch(), "shrinkA": 0, "shrinkB": 2}
        if start[1] == end[1]:
            axes.annotate("", end, start, arrowprops=arrow | {"patchA": one.get_bbox_patch()})
        else:  # round the corner, between the rows
            middle = (start[1] + end[1]) / 2
            axes.plot([start[0], start[0], end[0]], [start[1], middle, middle], color=_INK, linewidth=1, zorder=0)
            axes.annotate("", end, (end[0], middle), arrowprops=arrow)


def _label(line: str) -> str:
    """``  6 Mapper(decode)  <- 5`` -> ``Mapper(decode)``."""
    text = line.strip().split("  <- ")[0].split("  [")[0].split(" (added")[0].split(":")[0]
    number, _, rest = text.partition(" ")
    return rest if number.isdigit() else text
