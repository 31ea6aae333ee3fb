#!/usr/bin/env python3
"""Draw ``benchmarks/results.svg``, and write the tables of both READMEs, from ``benchmarks/results.json``.

Runs in the benchmarks' environment (matplotlib).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.peers import PEERS

__all__ = ["BEGIN", "END", "main", "readme_with", "table"]

HERE = Path(__file__).resolve().parent
BEGIN, END = "<!-- results: written by `make bench-plot` -->", "<!-- end of results -->"

# What a unit is shown in, by what it is divided, and whether less is better.
_UNITS = {
    "samples_per_s": ("thousand samples/s", 1e3, False),
    "tokens_per_s": ("million tokens/s", 1e6, False),
    "bytes_per_s": ("GB/s", 1e9, False),
    "first_batch_ms": ("ms to the first batch", 1.0, True),
    "resume_ms_3000": ("ms to resume", 1.0, True),
    "resume_ms": ("ms to resume", 1.0, True),
    "ns_per_stage": ("ns a stage and item", 1.0, True),
    "us_per_item": ("us an item", 1.0, True),
    "step_ratio": ("x the ideal step", 1.0, True),
    "memory_mb": ("MB", 1.0, True),
    "p1_percent": ("% more in P1", 1.0, True),
    "jsonl_128_per_s": ("documents/s of jsonl, as one shard of 128", 1.0, False),
}
_TURN_AROUND = (
    ("fresh_turn_around_ms", "turn-around ms"),
    ("turn_around_ms", "persistent"),
    ("fresh_close_ms", "close ms"),
    ("close_ms", "persistent"),
)
_MORE = {
    "p5": (("turn_around_ms", "turn-around ms"), ("close_ms", "close ms")),
    "p5s": (("turn_around_ms", "turn-around ms"), ("close_ms", "close ms")),
    "p6": (("resume_ms_100", "after 100"), ("state_dict_us_3000", "state_dict us"), ("state_bytes_3000", "bytes")),
    "p14": _TURN_AROUND,
    "p14f": _TURN_AROUND,
    "p14s": _TURN_AROUND,
    "p17": (("resume_ms", "ms to resume"), ("state_bytes", "bytes"), ("pss_mb", "PSS MB")),
    "p15": (("state_dict_us", "state_dict us"), ("state_bytes", "bytes")),
    "p18r": (("own_cpu_ms", "CPU ms of the process"), ("state_bytes", "bytes")),
    "p19r": (("own_cpu_ms", "CPU ms of the process"), ("state_bytes", "bytes")),
    "p13": (("us_per_batch", "us a batch of 32"),),
    "p8": (("first_batch_ratio", "first batch, x load"), ("worst_gap_ratio", "worst gap, x load")),
    "p8c": (("gb_per_s", "GB/s without a step"), ("step_ms", "ms of the step alone")),
    "p20": (("p2_percent", "% in P2"), ("p4_percent", "% in P4")),
    "p24": (
        ("jsonl_8_per_s", "of 8"),
        ("jsonl_1_per_s", "of 1"),
        ("parquet_128_per_s", "parquet, of 128"),
        ("tar_128_per_s", "tar, of 128"),
        ("tfrecord_128_per_s", "TFRecord, of 128"),
    ),
    "p9": (("memory_growth_mb", "growth MB"), ("descriptor_growth", "descriptors"), ("segment_growth", "segments")),
}
_NO_LOADERS = (
    "in_process",
    "packing_in_process",
    "generator",
    "builtin_map",
    "xla_naive",
    "cuda_naive",
)  # for comparison only
_OWN = (  # the first that a workload has is compared
    "ray",
    "dataloader",
    "torchpipe",
    "packing_torchpipe",
    "xla_torchpipe",
    "cuda_torchpipe",
    "tables",
    "tables_workers",
    "shards",
    "shards_in_process",
    "one_shard_pieces",
)
_IN_README = ("p10", "p12", "p13", "p17")  # of the project's README; all are in the benchmarks'
_STREAM = (("cpu_us_per_sample", "CPU us a sample"), ("pss_mb", "PSS MB"))


def readme_with(text: str, tables: str) -> str:
    """``text`` with what is between the two markers replaced. Raises: ValueError if a marker is missing."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"the README needs {BEGIN!r} and {END!r} once each, to write the tables between")
    head, rest = text.split(BEGIN)
    return f"{head}{BEGIN}\n\n{tables}\n\n{END}{rest.split(END)[1]}"


def table(workload: str, about: dict[str, Any], entries: list[dict[str, Any]]) -> str:
    """The Markdown table of one workload, the best peer first."""
    unit = about["UNIT"]
    shown, divisor, less_is_better = _UNITS[unit]
    more = _MORE.get(workload, () if workload == "p7" else _STREAM)
    shows = {unit, *(key for key, _ in more if key not in dict(_STREAM))}
    rows = [e for e in entries if shows & e["figures"].keys()]
    known = sorted((e for e in rows if unit in e["figures"]), key=lambda e: e["figures"][unit]["median"])
    rows = (known if less_is_better else known[::-1]) + [e for e in rows if unit not in e["figures"]]
    heads = ["peer", f"{shown}, median (min - max)", *(label for _, label in more), "rounds", "others' CPU"]
    lines = [f"**{about['TITLE']}**", "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for entry in rows:
        figure = {key: _number(number / divisor) for key, number in entry["figures"].get(unit, {}).items()}
        name = PEERS[entry["peer"]].label
        name = f"**{name}**" if entry["peer"] in _OWN else name
        cells = [name, f"{figure['median']} ({figure['min']} - {figure['max']})" if figure else ""]
        for key, _ in more:
            extra = entry["figures"].get(key)
            cells.append("" if extra is None else _number(extra["median"]))
        cells.append(str(entry["rounds"]))
        busy = entry["figures"].get("others", {"median": 0.0})["median"]
        cells.append(f"{busy:.0%}")
        lines.append(f"| {' | '.join(cells)} |")
    notes = [f"{PEERS[e['peer']].label}: {e.get('unsupported') or e.get('error')}" for e in entries if e not in rows]
    return "\n".join(lines + (["", "Without a figure: " + "; ".join(notes) + "."] if notes else []))


def ahead(workload: str, about: dict[str, Any], entries: list[dict[str, Any]]) -> str:
    """One line: which other loaders are ahead of torchpipe in this workload, and by how much. Empty without figures,
    or where no other loader takes part."""
    unit = about["UNIT"]
    less_is_better = _UNITS[unit][2]
    medians = {e["peer"]: e["figures"][unit]["median"] for e in entries if unit in e["figures"]}
    own = next((medians[peer] for peer in _OWN if peer in medians), None)
    if not own or not _has_peers(entries):
        return ""
    ratios = {
        PEERS[peer].label: own / median if less_is_better else median / own
        for peer, median in medians.items()
        if peer not in (*_OWN, *_NO_LOADERS[:2]) and median > 0
    }
    won = sorted(((ratio, label) for label, ratio in ratios.items() if ratio > 1), reverse=True)
    told = ", ".join(f"{label} {_times(ratio)}" for ratio, label in won)
    return f"- P{workload[1:]}: {told or 'none is ahead'}"


def quiet_only(entry: dict[str, Any]) -> dict[str, Any]:
    """``entry``, which has no figures if other programs took much of the machine in all of its rounds."""
    if not entry["all_busy"] or not entry["figures"]:
        return entry
    share = entry["figures"].get("others", {"median": 0.0})["median"]
    return entry | {"figures": {}, "error": f"other programs took {share:.0%} of the machine in all rounds"}


def overview(document: dict[str, Any]) -> str:
    """The table for the project's README: a line for each workload that others run too, torchpipe beside DataLoader and
    the best other; the first of each is bold."""
    lines = ["| workload | torchpipe | torch DataLoader | the best other loader |", "|---|---|---|---|"]
    for workload, about in document["about"].items():
        entries = [e for e in document["summary"] if e["workload"] == workload]
        if not _has_peers(entries):
            continue
        unit = about["UNIT"]
        shown, divisor, less_is_better = _UNITS[unit]
        medians = {
            e["peer"]: e["figures"][unit]["median"] / divisor
            for e in entries
            if unit in e["figures"] and e["peer"] not in _NO_LOADERS
        }
        own = next((medians[peer] for peer in _OWN if peer in medians), None)
        torch = medians.pop("torch", None)
        best = sorted((median, peer) for peer, median in medians.items() if "torchpipe" not in PEERS[peer].label)
        median, peer = (best[0] if less_is_better else best[-1]) if best else (None, "")
        known = [figure for figure in (own, torch, median) if figure is not None]
        first = min(known, default=None) if less_is_better else max(known, default=None)
        cells = ["" if figure is None else _number(figure, figure == first) for figure in (own, torch, median)]
        cells[2] += f" ({PEERS[peer].label})" if peer else ""
        lines.append(f"| {about['TITLE']} ({shown}) | {' | '.join(cells)} |")
    return "\n".join(lines)


def _has_peers(entries: list[dict[str, Any]]) -> bool:
    """Whether any other loader was run, with a figure or without."""
    return any(e["peer"] not in (*_OWN, *_NO_LOADERS) for e in entries)


def _number(figure: float, first: bool = False) -> str:
    """Four digits at least; the first of a row is bold."""
    text = f"{figure:,.0f}" if figure >= 1000 else f"{figure:.4g}"
    return f"**{text}**" if first else text


def _times(ratio: float) -> str:
    return f"by {ratio - 1:.0%}" if ratio < 2 else f"{ratio:.3g} x"


def _tables(document: dict[str, Any]) -> str:
    machine = document["machine"]
    minutes = document["took_s"] / 60
    head = (
        f"Measured on {machine['date']}: {machine['cpus']} CPUs, {machine['memory_gb']} GB, {machine['system']} "
        f"{machine['machine']}; at most {document['rounds']} rounds of {document['seconds']} s, {minutes:.0f} "
        "minutes in all."
    )
    parts = [head]
    for workload, about in document["about"].items():
        parts.append(table(workload, about, [e for e in document["summary"] if e["workload"] == workload]))
    lines = [
        ahead(workload, about, [e for e in document["summary"] if e["workload"] == workload])
        for workload, about in document["about"].items()
    ]
    parts.append("### Where a peer is ahead of torchpipe\n\n" + "\n".join(line for line in lines if line))
    return "\n\n".join(parts)


def _draw(document: dict[str, Any], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "torchpipe"  # the same file for the same figures
    from matplotlib import pyplot as plt

    panels = list(document["about"].items())
    curves = list(document.get("scaling", {}).items())
    columns = 4
    rows = -(-len(panels) // columns) + -(-len(curves) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(4.6 * columns, 3.2 * rows), squeeze=False)
    flat = [axis for row in axes for axis in row]
    for axis in flat:
        axis.set_visible(False)
    for axis, (workload, about) in zip(flat, panels):
        _bars(axis, workload, about, document["summary"])
    below = flat[-(-len(panels) // columns) * columns :]
    for axis, (_name, curve) in zip(below, curves):
        _curve(axis, curve)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def _bars(axis: Any, workload: str, about: dict[str, Any], summary: list[dict[str, Any]]) -> None:
    unit = about["UNIT"]
    shown, divisor, less_is_better = _UNITS[unit]
    entries = [e for e in summary if e["workload"] == workload and unit in e["figures"]]
    entries.sort(key=lambda e: e["figures"][unit]["median"], reverse=less_is_better)
    axis.set_visible(True)
    medians = [e["figures"][unit]["median"] / divisor for e in entries]
    spread = [
        [max(0.0, m - e["figures"][unit]["min"] / divisor) for m, e in zip(medians, entries)],
        [max(0.0, e["figures"][unit]["max"] / divisor - m) for m, e in zip(medians, entries)],
    ]
    colours = ["#d1495b" if "torchpipe" in PEERS[e["peer"]].label else "#8d99ae" for e in entries]
    axis.barh([PEERS[e["peer"]].label for e in entries], medians, xerr=spread, color=colours, ecolor="#333")
    if medians and max(medians) > 30 * max(min(medians), 1e-9):
        axis.set_xscale("log")
    axis.set_title(about["TITLE"], fontsize=9)
    axis.set_xlabel(shown + (" (less is better)" if less_is_better else ""), fontsize=8)
    axis.tick_params(labelsize=7)


def _curve(axis: Any, curve: dict[str, Any]) -> None:
    axis.set_visible(True)
    values = [y for line in curve["lines"].values() for _, y in line]
    for peer, line in curve["lines"].items():
        mine = "torchpipe" in peer
        axis.plot(
            [x for x, _ in line],
            [y for _, y in line],
            marker="o" if len(line) < 20 else None,
            markersize=3,
            linewidth=2 if mine else 1,
            color="#d1495b" if mine else None,
            label=PEERS[peer].label if peer in PEERS else peer,
        )
    places = [x for line in curve["lines"].values() for x, _ in line]
    if places and max(places) > 50 * min(places) and curve["figure"] != "memory_mb_of_epoch":
        axis.set_xscale("log")
    if values and max(values) > 30 * max(min(values), 1e-9):
        axis.set_yscale("log")
    elif values:
        axis.set_ylim(bottom=0)
    axis.set_title(curve["figure"], fontsize=9)
    axis.set_xlabel(curve["label"], fontsize=8)
    axis.tick_params(labelsize=7)
    axis.legend(fontsize=6)


def main() -> None:
    source = HERE / "results.json"
    if not source.exists():
        sys.exit(f"{source} is missing: run `make bench` first")
    document = json.loads(source.read_text())
    document["summary"] = list(map(quiet_only, document["summary"]))
    _draw(document, HERE / "results.svg")
    readme = HERE / "README.md"
    readme.write_text(readme_with(readme.read_text(), _tables(document)))
    readme = HERE.parent / "README.md"
    chosen = {workload: document["about"][workload] for workload in _IN_README}
    readme.write_text(readme_with(readme.read_text(), overview({**document, "about": chosen})))
    print("written: benchmarks/results.svg and the tables of benchmarks/README.md and README.md")


if __name__ == "__main__":
    main()
