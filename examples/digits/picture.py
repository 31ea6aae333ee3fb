"""The picture of the demo: the loss over the steps with what happened, and where each node of the graph ran."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from examples.digits.lineage import Run

__all__ = ["draw_picture"]

_INK, _PALE, _RED, _GREEN, _BLUE = "#1e293b", "#94a3b8", "#dc2626", "#059669", "#2563eb"


def draw_picture(path: Path, reference: Run, interrupted: Run, killed_at: int) -> None:
    """Write the picture as PNG (or what the suffix of ``path`` says)."""
    figure, (losses, places) = plt.subplots(2, 1, figsize=(10, 7), height_ratios=(3, 2), layout="constrained")
    _draw_losses(losses, reference, interrupted, killed_at)
    _draw_places(places, interrupted.starts[-1]["plan"])
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _draw_losses(axes: Axes, reference: Run, interrupted: Run, killed_at: int) -> None:
    def line(run: Run, **style: object) -> None:
        axes.plot([step["step"] for step in run.steps], [step["loss"] for step in run.steps], **style)

    line(reference, color=_PALE, linewidth=5, label="left alone")
    line(interrupted, color=_BLUE, linewidth=1.3, label="killed twice")
    resumed_at = interrupted.starts[-1]["step"]
    top = axes.get_ylim()[1]
    worker = interrupted.restarts_seen_at[0]
    axes.axvline(worker, color=_RED, linestyle="--")
    axes.annotate("a worker is SIGKILLed\nand replaced", (worker + 2, top * 0.8), color=_RED)
    axes.axvline(killed_at, color=_RED)
    axes.annotate("the training process\nis SIGKILLed", (killed_at + 2, top * 0.8), color=_RED)
    axes.axvline(resumed_at, color=_GREEN)
    axes.annotate(
        f"it goes on from its\ncheckpoint (step {resumed_at})", (resumed_at - 2, top * 0.55), color=_GREEN, ha="right"
    )
    axes.axvspan(resumed_at, killed_at, color=_GREEN, alpha=0.12)
    axes.set(xlabel="step", ylabel="training loss", title="5,000 real digits: the two runs are one", ylim=(0, top))
    axes.legend(loc="upper right", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_places(axes: Axes, plan: str) -> None:
    """The sections of ``loader.explain()``: a row of boxes for each."""
    axes.set_axis_off()
    axes.set(xlim=(0, 100), ylim=(0, 100))
    sections: list[tuple[str, list[str]]] = []
    for text in plan.splitlines():
        if not text.startswith(" "):
            sections.append((text, []))
        else:
            sections[-1][1].append(text)
    y = 92
    for (title, lines), color in zip(sections, ("#dbeafe", "#fef9c3")):
        axes.text(0, y, title, color=_INK, fontweight="bold", fontsize=10)
        y -= 17
        for number, text in enumerate(lines):
            row, column = divmod(number, 5)
            x = column * 20.0
            name = _label(text)
            axes.text(
                x + 9,
                y - row * 19,
                name,
                ha="center",
                va="center",
                fontsize=8,
                color=_INK,
                bbox={"boxstyle": "round,pad=0.45", "facecolor": color, "edgecolor": _PALE},
            )
            if number + 1 < len(lines) and column < 4:
                arrow = {"arrowstyle": "->", "color": _INK}
                axes.annotate("", (x + 21.2, y - row * 19), (x + 18.2, y - row * 19), arrowprops=arrow)
        y -= 19 * ((len(lines) + 4) // 5) + 3


def _label(line: str) -> str:
    """``  6 Mapper(decode)  <- 5`` -> ``Mapper(decode)``."""
    text = line.strip().split("  <- ")[0].split("  [")[0].split(" (added")[0].split(":")[0]
    number, _, rest = text.partition(" ")
    return rest if number.isdigit() else text
