"""What ``DataLoader``'s workers are started from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = '''
import os
import multiprocessing
from pathlib import Path
from torchpipe import DataLoader

class Parents:
    """Sample 0: has the process that the worker was forked from torch loaded?"""

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return "libtorch" in Path(f"/proc/{os.getppid()}/maps").read_text()

if __name__ == "__main__":
    loader = DataLoader(Parents(), batch_size=None, num_workers=1, multiprocessing_context=CONTEXT)
    assert list(loader) == [True]
'''


def test_a_forkserver_imports_torch_once_for_all_workers(tmp_path: Path) -> None:
    for number, context in enumerate(('"forkserver"', 'multiprocessing.get_context("forkserver")')):
        script = tmp_path / f"parents{number}.py"
        script.write_text(SCRIPT.replace("CONTEXT", context))
        subprocess.run([sys.executable, str(script)], check=True, timeout=300)
