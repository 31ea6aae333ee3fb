"""One workload with one peer in this process, once; the result is the last line of standard output, as JSON.

Started by ``harness/rounds.py`` with the interpreter of the peer's environment:
``python -m benchmarks.harness.child WORKLOAD PEER SECONDS [JSON with options]``.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from typing import Any

__all__ = ["main"]

CLOSE_LIMIT_S = 5.0


def main(arguments: list[str]) -> None:
    """Run it, print the result, leave. Never hangs on a loader that cannot be closed: that becomes a note."""
    workload_name, peer_name, seconds = arguments[0], arguments[1], float(arguments[2])
    options: dict[str, Any] = json.loads(arguments[3]) if len(arguments) > 3 else {}
    warnings.simplefilter("ignore")
    result: dict[str, Any] = {"workload": workload_name, "peer": peer_name, **options}
    from benchmarks.harness.job import Unsupported
    from benchmarks.peers import find_peer
    from benchmarks.workloads import find_workload

    close: Callable[[], None] | None = None
    try:
        figures = find_workload(workload_name).run(find_peer(peer_name), seconds, **options)
        close = figures.pop("close", None)
        result.update(figures)
    except Unsupported as reason:
        result["unsupported"] = str(reason)
    except Exception as error:
        result["error"] = f"{type(error).__name__}: {error}"
        traceback.print_exc()
    if close is not None:
        closer = threading.Thread(target=close, daemon=True)
        closer.start()
        closer.join(CLOSE_LIMIT_S)
        result["closed"] = not closer.is_alive()
    print(json.dumps(result), flush=True)
    # Some peers leave threads or processes that keep the interpreter alive; the runner ends what is left.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
