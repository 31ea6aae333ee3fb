"""Audit all pipelines: ``python -m benchmarks.audit [--kills 5] [NAME ...]``. Prints a table; the reports to stderr."""

from __future__ import annotations

import argparse
import sys
from importlib import metadata
from pathlib import Path

from torchpipe.testing.audit import AuditReport, audit

PIPELINES = {
    "packing_torchpipe": "shuffle buffer, packing | torchpipe `DataLoader2`",
    "packing_stateful": "shuffle buffer, packing | `StatefulDataLoader`, a dataset that saves all it keeps",
    "packing_datasets": "shuffle buffer, packing | Hugging Face stream in a `StatefulDataLoader`",
    "images_torchpipe": "map-style, augmented | torchpipe `DataLoader`",
    "images_stateful": "map-style, augmented | `StatefulDataLoader`",
    "images_stateful_with_state": "map-style, augmented | `StatefulDataLoader`, a dataset that saves the random state",
    "images_nodes": "map-style, augmented | `torchdata.nodes`, noise seeded by the index",
    "images_grain": "map-style, augmented | grain",
    "shards_torchpipe": "tar shards | torchpipe `DataLoader2`",
    "shards_webdataset": "tar shards | webdataset `WebLoader`",
    "shards_webdataset_stateful": "tar shards | webdataset in a `StatefulDataLoader`",
    "shards_webdataset_counted": "tar shards | webdataset in a `StatefulDataLoader`, a dataset that counts its samples",
    "shards_datasets": "tar shards | Hugging Face stream in a `StatefulDataLoader`",
}
PACKAGES = ("torch", "torchdata", "datasets", "grain", "webdataset")
CHECKS = ("cut off", "resumed twice", "resumed at", "a worker", "2 workers, resumed")


def cell(report: AuditReport, check: str) -> str:
    row = next((row for row in report.rows if row.check.startswith(check)), None)
    if row is None or row.verdict in ("-", "refused"):
        return "-" if row is None else row.verdict
    if row.hang:
        return "hangs"
    names = ("lost", "repeated", "reordered", "changed")
    counted = [f"{number} {name}" for name in names if (number := getattr(row, name))]
    counted += [f"{row.left_over} processes left"] if row.left_over else []
    return ", ".join(counted) or ("ok" if row.verdict == "ok" else "error")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PIPELINES)}")
    parser.add_argument("--kills", type=int, default=5)
    given = parser.parse_args()
    print("| pipeline | loader | cut off 5 times | twice | epoch's end | worker killed | 2 workers, then 4 |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for name in given.names or PIPELINES:
        file = Path(__file__).with_name("grain_pipelines.py" if name.endswith("grain") else "pipelines.py")
        identify = f"{file}:tokens" if name.startswith("packing") else None
        report = audit(f"{file}:{name}", identify=identify, kills=given.kills, workers=(2, 4))
        print(f"| {PIPELINES[name]} | " + " | ".join(cell(report, check) for check in CHECKS) + " |", flush=True)
        print(f"{report}\n", file=sys.stderr)
    print(f"\nWith {', '.join(f'{name} {metadata.version(name)}' for name in PACKAGES)}.")


if __name__ == "__main__":
    main()
