"""An epoch over time, as a picture: items a second, how much of the time the loop waited, and what happened. Pure."""

from __future__ import annotations

from collections.abc import Callable

from torchpipe.observe.text import format_count
from torchpipe.observe.views.theme import CSS, escape
from torchpipe.stats import LoaderStats, Moment

__all__ = ["timeline_svg"]

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM, _STRIP = 760, 220, 56, 26, 60, 16
_SERIOUS = ("restart", "lost", "stall")


def timeline_svg(stats: LoaderStats) -> str:
    """A whole SVG document. Needs at least one moment in ``stats.timeline``."""
    spans = _spans(stats)
    end_s = max(_moments(stats)[-1].at_s, 1e-9)
    most = max((rate for _, _, rate, _ in spans), default=0.0) or 1.0
    base = _HEIGHT - _BOTTOM
    plot_w, plot_h = _WIDTH - _LEFT - 14, base - _TOP

    def x(at_s: float) -> float:
        return _LEFT + plot_w * min(1.0, max(0.0, at_s / end_s))

    points = [f"M{_LEFT} {base}"]
    strip = []
    for begin, end, rate, waited in spans:
        y = base - plot_h * rate / most
        points.append(f"L{x(begin):.1f} {y:.1f}L{x(end):.1f} {y:.1f}")
        strip.append(
            f'<rect class="wait" x="{x(begin):.1f}" y="{base + 8}" width="{max(0.5, x(end) - x(begin)):.1f}" '
            f'height="{_STRIP}" opacity="{waited:.2f}"><title>{100 * waited:.0f} % waited</title></rect>'
        )
    area = f'<path d="{"".join(points)}L{x(spans[-1][1] if spans else 0):.1f} {base}Z" class="busy" opacity="0.35"/>'
    ticks = "".join(
        f'<line x1="{_LEFT}" x2="{_WIDTH - 14}" y1="{base - plot_h * part:g}" y2="{base - plot_h * part:g}" '
        f'style="stroke:var(--line)"/><text class="soft" x="{_LEFT - 8}" y="{base - plot_h * part + 4:g}" '
        f'text-anchor="end">{format_count(most * part)}</text>'
        for part in (0, 0.5, 1)
    )
    times = "".join(
        f'<text class="soft" x="{x(end_s * part):.1f}" y="{base + 42}" text-anchor="{where}">'
        f"{_clock(end_s * part)}</text>"
        for part, where in ((0, "start"), (0.5, "middle"), (1, "end"))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="tp" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" role="img" aria-label="Items a second over time"><style>{CSS}</style>'
        f'<rect class="paper" width="100%" height="100%"/><text class="soft" x="{_LEFT}" y="15">items a second; below: '
        f"how much of the time your loop waited</text>{ticks}{area}"
        f'<rect class="idle" x="{_LEFT}" y="{base + 8}" width="{plot_w}" height="{_STRIP}" opacity="0.5"/>'
        f"{''.join(strip)}{_marks(stats, end_s, x)}{times}</svg>"
    )


def _moments(stats: LoaderStats) -> list[Moment]:
    """The noted moments, and the present one: it completes the picture with all that came after the last of them."""
    moments, consumer = list(stats.timeline), stats.consumer
    now_s = (consumer.start_s or 0.0) + consumer.elapsed_s
    last, before_s = moments[-1], moments[-2].at_s if len(moments) > 1 else 0.0
    if now_s > last.at_s:
        if now_s - last.at_s < (last.at_s - before_s) / 2:  # too short for a rate of its own
            moments.pop()
        items, wait_s = max(consumer.items, last.items), max(consumer.wait_s, last.wait_s)
        moments.append(Moment(at_s=now_s, items=items, wait_s=wait_s))
    return moments


def _spans(stats: LoaderStats) -> list[tuple[float, float, float, float]]:
    """(begin, end, items a second, part of it waited) between two moments."""
    spans = []
    at_s, items, wait_s = 0.0, 0, 0.0
    for moment in _moments(stats):
        took = moment.at_s - at_s
        if took > 0:
            waited = min(1.0, max(0.0, (moment.wait_s - wait_s) / took))
            spans.append((at_s, moment.at_s, (moment.items - items) / took, waited))
        at_s, items, wait_s = moment.at_s, moment.items, moment.wait_s
    return spans


def _marks(stats: LoaderStats, end_s: float, x: Callable[[float], float]) -> str:
    marks = []
    for event in stats.events:
        at_s = event.at - (stats.began_at or event.at)
        if not 0 <= at_s <= end_s * 1.05:
            continue
        colour = "var(--bad)" if event.kind in _SERIOUS else "var(--soft)"
        at = x(at_s)
        line = (
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP - 4}" y2="{_HEIGHT - _BOTTOM + 24}" stroke-width="2" '
            f'stroke-dasharray="4 3"/>'
        )
        marks.append(
            f'<g style="stroke:{colour}"><title>{escape(f"{event.kind}: {event.process}: {event.text}")}</title>'
            f"{'' if event.kind == 'skip' else line}"  # there may be a hundred of these
            f'<circle cx="{at:.1f}" cy="{_TOP - 4}" r="4" style="fill:{colour}"/></g>'
        )
    return "".join(marks)


def _clock(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02} min" if minutes < 120 else f"{minutes / 60:.1f} h"
