"""The fault matrix as a table: what must come of each fault at each moment to each kind of process.

Pure data; ``python -m tests.faults.table`` prints it as Markdown.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from tests.faults.inflict import DEADLY, FAULTS, MOMENTS

__all__ = [
    "CHILDREN",
    "ELSEWHERE",
    "EXACT",
    "NAMED",
    "NOTHING",
    "WHO",
    "Cell",
    "Outcome",
    "cells",
    "outcome",
]

CHILDREN = ("worker", "dispatcher", "dispatched worker")  # the last: a worker that a dispatcher serves
WHO = (*CHILDREN, "main", "device thread")

EXACT, NAMED, NOTHING, ELSEWHERE = "exact", "named error", "not applicable", "elsewhere"


@dataclass(frozen=True)
class Outcome:
    """``kind`` is one of

    exact           the stream is the oracle's, bit for bit; for main: after a resume from its last saved state
    named error     raised at its place, and a resume from there is exact; ``why`` is the error's name
    not applicable  ``why`` says why there is no such thing
    elsewhere       run by the test that ``why`` names
    """

    kind: str
    why: str = ""


@dataclass(frozen=True)
class Cell:
    who: str
    fault: str
    moment: str

    def __str__(self) -> str:
        return f"{self.who}-{self.fault}-{self.moment}".replace(" ", "_")

    @property
    def outcome(self) -> Outcome:
        return outcome(self.who, self.fault, self.moment)


def outcome(who: str, fault: str, moment: str) -> Outcome:
    """What must come of it."""
    if fault == "out of shared memory":
        if who in CHILDREN and moment in ("start", "mid-item", "last item"):
            return Outcome(ELSEWHERE, "test_shared_memory.py")
        reason = "main makes no slots" if who not in CHILDREN else "no slot is made at that moment"
        return Outcome(NOTHING, reason)
    if who in CHILDREN:
        return _of_child(who, fault, moment)
    return _of_main(fault, moment) if who == "main" else _of_device_thread(fault, moment)


def _of_child(who: str, fault: str, moment: str) -> Outcome:
    if fault in (*DEADLY, "SIGSTOP"):
        return Outcome(EXACT)
    if fault == "exception":
        if moment == "epoch boundary":
            return Outcome(NOTHING, "no user code runs between epochs")
        return Outcome(EXACT if moment == "while stopping" else NAMED, "" if moment == "while stopping" else "Struck")
    if moment == "while stopping" or (moment == "epoch boundary" and who == "worker"):
        return Outcome(EXACT)  # the runtime itself opens nothing in a worker that no dispatcher serves
    return Outcome(NAMED, "OSError")


def _of_main(fault: str, moment: str) -> Outcome:
    if fault == "too many open files":
        return Outcome(ELSEWHERE, "test_open_files.py")
    if moment == "pass given up":
        return Outcome(NOTHING, "main's end in the midst of that is its end while stopping")
    if moment == "epoch start":
        return Outcome(NOTHING, "to main that is the epoch boundary")
    return Outcome(EXACT)


def _of_device_thread(fault: str, moment: str) -> Outcome:
    if fault in (*DEADLY, "SIGSTOP"):
        return Outcome(NOTHING, "it happens to the whole process: main's cell")
    if fault == "too many open files":
        return Outcome(NOTHING, "the limit is the process's: main's cell; a failing call is the exception's cell")
    if moment in ("start", "epoch start", "epoch boundary"):
        return Outcome(NOTHING, "the thread lives for one pass and begins with its first item")
    return Outcome(ELSEWHERE, "test_device_thread.py")


def cells(*who: str) -> list[Cell]:
    """All cells of these kinds of process."""
    return [Cell(*cell) for cell in product(who, FAULTS, MOMENTS)]


def markdown() -> str:
    """The whole table, a line for each kind of process and fault."""
    lines = ["| who | fault | " + " | ".join(MOMENTS) + " |", "|---" * (len(MOMENTS) + 2) + "|"]
    notes: dict[str, int] = {}
    for who, fault in product(WHO, FAULTS):
        row = [outcome(who, fault, moment) for moment in MOMENTS]
        words = [
            item.why if item.kind == NAMED else item.kind + (f" [{_note(notes, item.why)}]" if item.why else "")
            for item in row
        ]
        lines.append(f"| {who} | {fault} | " + " | ".join(words) + " |")
    return "\n".join(lines + [""] + [f"[{number}]: {why}" for why, number in notes.items()])


def _note(notes: dict[str, int], why: str) -> int:
    return notes.setdefault(why, len(notes) + 1)


if __name__ == "__main__":
    print(markdown())
