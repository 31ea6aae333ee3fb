"""``torchpipe``: what a graph is, what a checkpoint holds, what this machine lacks, without writing a script.

Results go to stdout, as text or with ``--json`` as one JSON document; what your code prints goes to stderr then. A
mistake is one line on stderr and exit code 2; ``--traceback`` shows where it comes from.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
import traceback
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NoReturn

from torchpipe.observe.cli.output import accept_all_characters, reader_is_gone, stdout_to_stderr, tell
from torchpipe.observe.text import plain

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command: its exit code.

    0: done; 1: a difference, a fault, a problem, a refused state, or nothing found; 2: a mistake.
    """
    accept_all_characters()
    options = _parser().parse_args(arguments)
    try:
        with stdout_to_stderr() if options.json else nullcontext():
            result: tuple[int, Any] = options.run(options)
        code, answer = result
        tell(answer)
    except KeyboardInterrupt:
        return 130
    except (Exception, SystemExit) as error:  # of the user's code as well, which the command imports
        if isinstance(error, BrokenPipeError) and reader_is_gone():  # `head`, say, has had enough
            sys.stderr.close()
            return 0
        if options.traceback:
            traceback.print_exc()
        print(f"torchpipe: {type(error).__name__}: {plain(_message(error))}", file=sys.stderr)
        return 2
    return code


def _message(error: BaseException) -> str:
    """On one line."""
    notes = [note for note in getattr(error, "__notes__", ()) if str(note).startswith("torchpipe: raised")]
    text = " ".join(" ".join([str(error), *(f"({note[11:]})" for note in notes)]).split())
    if isinstance(error, SystemExit):
        return f"your code ended the program ({text or 0}): is a script without `if __name__ == '__main__'` imported?"
    return text or "no message"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        if wrong := re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message):
            near = difflib.get_close_matches(wrong[1], re.findall(r"[\w-]+", wrong[2]), 1)
            message += f"; did you mean {near[0]!r}?" if near else ""
        self.exit(2, f"{self.prog}: {message}; {self.prog} --help says more\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="torchpipe", description="Look at data pipelines, their checkpoints, and the machine they run on."
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    common = _Parser(add_help=False)
    common.add_argument("--json", action="store_true", help="print one JSON document")
    common.add_argument("--traceback", action="store_true", help="show where an error comes from")
    of_graph = _Parser(add_help=False, parents=[common])
    of_graph.add_argument(
        "target",
        metavar="MODULE:NAME",
        help="a loader, a graph, or a function that makes one; a file: path/to/file.py:NAME",
    )
    of_graph.add_argument(
        "--workers", type=_count, metavar="N", help="run a graph in N worker processes (default: in process)"
    )

    explain = commands.add_parser("explain", parents=[of_graph], help="which node runs where")
    explain.add_argument("--format", choices=("text", "svg", "mermaid"), default="text")
    explain.set_defaults(run=_explain)

    watch = commands.add_parser("watch", parents=[of_graph], help="iterate it, and show live who waits for whom")
    watch.add_argument(
        "--items", type=_count, metavar="N", help="stop after N items (default: at the end of the epoch)"
    )
    watch.add_argument("--report", metavar="FILE.html", help="write a report of it")
    watch.set_defaults(run=_watch)

    profile = commands.add_parser(
        "profile", parents=[common], help="what each node of a graph could do, run in process"
    )
    profile.add_argument("target", metavar="MODULE:NAME", help="as for explain")
    profile.add_argument("--seconds", type=float, default=0.5, metavar="S", help="for each node (default: 0.5)")
    profile.set_defaults(run=_profile)

    audit = commands.add_parser(
        "audit",
        parents=[common],
        help="any loader, cut off, killed and resumed: what is lost, what comes twice",
        description="Runs the loader that a function of yours makes some twenty times, each time in a process of "
        "its own: whole, cut off and resumed, with a worker killed, at an epoch's end, under other numbers of workers "
        "and ranks; and counts the samples that are lost, repeated, reordered or changed. The loader may be anything "
        "that is iterable, with or without a state_dict.",
        epilog="Exit code: 0: no fault; 1: a fault; 2: it could not be run. An error that the loader raises (refused) "
        "is no fault where the workers or ranks are others than before, or a worker died: nothing is lost unseen. "
        "Example: torchpipe audit train.py:make_loader --workers 2,4 --id train.py:ids",
    )
    audit.add_argument(
        "target",
        metavar="FILE.py:FUNCTION",
        help="what makes the loader, or MODULE:FUNCTION; it may take num_workers (or workers), rank, world_size, epoch",
    )
    audit.add_argument("--kills", type=_count, default=5, metavar="N", help="cut the run off so often (default: 5)")
    audit.add_argument(
        "--workers",
        type=_counts,
        default=(),
        metavar="N,M,...",
        help="run with N workers, and resume under the others too (default: the function's own)",
    )
    audit.add_argument("--epochs", type=_count, default=2, metavar="N", help="loops over the loader (default: 2)")
    audit.add_argument(
        "--id",
        metavar="FILE.py:FUNCTION",
        help="a function of a batch that gives the ids of its samples (default: fields named id, index or key, or else "
        "a digest of each sample)",
    )
    audit.add_argument(
        "--batches", type=_count, default=10_000, metavar="N", help="read at most so many (default: 10000)"
    )
    audit.add_argument(
        "--timeout", type=float, default=60.0, metavar="S", help="a run without a batch for so long hangs (default: 60)"
    )
    audit.add_argument("--seed", type=_count, default=0, metavar="N", help="draws where it is cut off (default: 0)")
    audit.add_argument("--unseeded", action="store_true", help="two whole runs may differ in order and content")
    audit.add_argument("--html", metavar="FILE", help="write the report as a page")
    audit.set_defaults(run=_audit)

    state = commands.add_parser("state", help="look into checkpoints; runs nothing that is in them")
    of_state = state.add_subparsers(required=True, metavar="COMMAND")
    show = of_state.add_parser(
        "show",
        parents=[common],
        help="the loader states in a checkpoint; with a loader, exit code 1 if it refuses one",
    )
    show.add_argument("file", metavar="CHECKPOINT", help="of torch.save, JSON, or a folder of a distributed checkpoint")
    show.add_argument(
        "target", nargs="?", metavar="FILE.py:FUNCTION", help="a loader, or what makes one: does it take the state?"
    )
    show.set_defaults(run=_show)
    diff = of_state.add_parser("diff", parents=[common], help="what differs between two; exit code 1 if anything does")
    diff.add_argument("first")
    diff.add_argument("second")
    diff.set_defaults(run=_diff)

    _add_steps(commands, common)

    doctor = commands.add_parser(
        "doctor", parents=[common], help="what will go wrong on this machine, and how to mend it"
    )
    doctor.add_argument("--quick", action="store_true", help="do not start processes to see whether they start")
    doctor.set_defaults(run=_doctor)

    check = commands.add_parser(
        "check",
        parents=[common],
        help="read all records of files before a run does: bad ones, equal keys, lengths, sizes",
        epilog="Exit code: 0; 1: there are problems; 2: a mistake.",
    )
    check.add_argument("files", nargs="+", metavar="FILES", help="paths, in which braces and globs may stand")
    check.add_argument("--key", metavar="FIELD", help="what no two records have alike (default: __key__ in tar shards)")
    check.add_argument("--workers", type=_count, metavar="N", help="in N processes (default: one for each core)")
    check.set_defaults(run=_check)
    return parser


def _add_steps(commands: Any, common: argparse.ArgumentParser) -> None:
    at_step = _Parser(add_help=False, parents=[common])
    at_step.add_argument("file", metavar="CHECKPOINT", help="as for state show")
    at_step.add_argument(
        "target", metavar="FILE.py:FUNCTION", help="what makes the loader; it may take rank and world_size"
    )
    at_step.add_argument("--rank", type=_count, metavar="R", help="whose batches (default: that of the state, or 0)")
    at_step.add_argument(
        "--world-size", type=_count, metavar="N", help="how many ranks there were (default: as the state says, or 1)"
    )
    at_step.add_argument("--state", metavar="NAME", help="which state of several, by its name in state show")
    at_step.add_argument("--epoch", type=_count, metavar="E", help="of which epoch (default: that of the state)")
    at_step.add_argument("--allow-pickle", action="store_true", help="load a state whose items only pickle can rebuild")
    rows = commands.add_parser(
        "rows",
        parents=[at_step],
        help="which samples were in which steps, computed from a checkpoint",
        description="Says which samples the steps of an epoch have, without a log of the run: a step is a batch of one "
        "rank, and counts from 0 at the beginning of the epoch.",
        epilog="Exit code: 0; 1: the epoch has none of the steps, or none has the sample; 2: a mistake.",
    )
    rows.add_argument("--steps", type=_steps, metavar="FIRST:END", help="these steps, END left out; or one, 1207")
    rows.add_argument("--find", metavar="ID", help="in which of these steps, or before the checkpoint, it is")
    rows.add_argument(
        "--keep", metavar="FIELD,...", help="the fields that say which sample it is (default: id and such)"
    )
    rows.set_defaults(run=_rows)
    batch = commands.add_parser(
        "batch", parents=[at_step], help="the batch that a rank had in a step, made again and saved"
    )
    batch.add_argument("--step", type=_count, required=True, metavar="N", help="counts from 0 in the epoch")
    batch.add_argument("-o", "--output", required=True, metavar="FILE.pt", help="where torch.save puts it")
    batch.set_defaults(run=_batch)


def _steps(text: str) -> range:
    """``1200:1210`` (without 1210) or ``1207``."""
    first, colon, last = text.partition(":")
    if not (first.isdecimal() and (last.isdecimal() or not colon)):
        raise argparse.ArgumentTypeError(f"{text!r} should be a step, or FIRST:END such as 1200:1210, without END")
    steps = range(int(first), int(last) if colon else int(first) + 1)
    if not steps:
        raise argparse.ArgumentTypeError(f"{text!r} has no steps: the first one comes first, {last}:{first}")
    return steps


def _counts(text: str) -> tuple[int, ...]:
    return tuple(_count(part.strip()) for part in text.split(","))


def _count(text: str) -> int:
    if not text.lstrip("-").isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number")
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return number


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"torchpipe {version('torchpipe-data')}"
    except PackageNotFoundError:
        return "torchpipe, not installed"


def _check(options: argparse.Namespace) -> tuple[int, Any]:
    from torchpipe.machine import format_bytes
    from torchpipe.observe.cli.check import check_files
    from torchpipe.observe.views.screen import Terminal, screen_here

    screen = screen_here()

    def on_file(files: int, of_files: int, size: int, of_bytes: int) -> None:
        if isinstance(screen, Terminal):
            part = size / max(1, of_bytes)
            text = f"{files:,} of {of_files:,} files, {format_bytes(size)} of {format_bytes(of_bytes)}"
            screen.show([f"[{'#' * round(30 * part):<30}] {100 * part:.0f} %, {text}"[: screen.width]])

    try:
        checked = check_files(options.files, options.key, options.workers, on_file)
    finally:
        screen.close()
    return int(bool(checked.problems)), checked.to_dict() if options.json else str(checked)


def _explain(options: argparse.Namespace) -> tuple[int, Any]:
    from torchpipe.observe.cli.targets import loader_of
    from torchpipe.observe.text import stats_to_dict

    loader = loader_of(options.target, options.workers)
    try:
        if not options.json:
            return 0, loader.explain(options.format)
        stats = stats_to_dict(loader.stats())
        return 0, {name: stats[name] for name in ("workers", "shards", "method", "total", "nodes")}
    finally:
        loader.shutdown()


def _watch(options: argparse.Namespace) -> tuple[int, Any]:
    from itertools import islice

    from torchpipe.observe.cli.targets import loader_of
    from torchpipe.observe.text import stats_to_dict

    if options.report is not None:  # before it takes its time
        from torchpipe.observe.views.report import check_target

        check_target(options.report)
    loader = loader_of(options.target, options.workers)
    try:
        code = 0
        with loader.watch():
            try:
                for _ in islice(loader, options.items):
                    pass
            except KeyboardInterrupt:  # what was seen until then is told all the same
                code = 130
                loader.shutdown()
            stats = loader.stats()
        if options.report is not None:
            loader.report(options.report, title=options.target)
        return code, stats_to_dict(stats) if options.json else str(stats)
    finally:
        loader.shutdown()


def _profile(options: argparse.Namespace) -> tuple[int, Any]:
    from torchpipe.observe.cli.targets import loader_of
    from torchpipe.observe.profiling import profile

    found = profile(loader_of(options.target), seconds=options.seconds)
    return 0, found.to_dict() if options.json else str(found)


def _audit(options: argparse.Namespace) -> tuple[int, Any]:
    from torchpipe.observe.views.report import check_target
    from torchpipe.rings import from_ring

    audit = from_ring("torchpipe.testing.audit:audit")

    page = None if options.html is None else check_target(options.html)  # before it takes its time
    found = audit(
        options.target,
        identify=options.id,
        kills=options.kills,
        workers=options.workers,
        epochs=options.epochs,
        batches=options.batches,
        timeout_s=options.timeout,
        seed=options.seed,
        unseeded=options.unseeded,
        on_row=lambda row: print(f"{row.verdict:<8} {plain(row.check)}", file=sys.stderr, flush=True),
    )
    if page is not None:
        page.write_text(found.to_html())
    return int(not found.passed), found.to_dict() if options.json else str(found)


def _show(options: argparse.Namespace) -> tuple[int, Any]:
    from torchpipe.observe.cli.states import as_data, read_states, shown

    states = read_states(options.file)
    refused = {} if options.target is None else _refusals(states, options.target)
    code = int(any(refused.values()))
    if options.json:
        found = {where: as_data(state) for where, state in states.items()}
        return code, found if options.target is None else {"states": found, "refused": refused}
    lines = []
    for where, state in states.items():
        lines.append(shown(where, state))
        if options.target is not None:
            text = refused[where] or f"loads into {options.target}"
            lines[-1] += "".join(f"\n  {line}" for line in text.splitlines())
    return code, "\n\n".join(lines)


def _refusals(states: dict[str, Any], target: str) -> dict[str, str]:
    """The loader's reason to refuse each state; empty if it does not."""
    from torchpipe.observe.cli.targets import refusal

    return {where: refusal(target, state) for where, state in states.items()}


def _diff(options: argparse.Namespace) -> tuple[int, Any]:
    from torchpipe.observe.cli.states import differences, read_states

    found = differences(read_states(options.first), read_states(options.second))
    if options.json:
        return int(bool(found)), found
    lines = [f"{item['where']}: {item['first']} -> {item['second']}" for item in found]
    return int(bool(found)), "\n".join(lines) or "no difference"


def _rows(options: argparse.Namespace) -> tuple[int, Any]:
    from torchpipe.observe.cli.steps import rows

    return rows(options)


def _batch(options: argparse.Namespace) -> tuple[int, Any]:
    from torchpipe.observe.cli.steps import batch

    return batch(options)


def _doctor(options: argparse.Namespace) -> tuple[int, Any]:
    from torchpipe.observe.cli.doctor import examine

    findings = examine(start_processes=not options.quick)
    code = int(any(finding.level == "problem" for finding in findings))
    if options.json:
        return code, [finding.to_dict() for finding in findings]
    return code, "\n".join(map(str, findings))
