"""What streams of members weigh."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from tests.stats.test_sizes import nodes_of
from torchpipe.iter import FileOpener, IterableWrapper


def test_members_have_their_length(tmp_path: Path) -> None:
    for number in range(4):
        with tarfile.open(tmp_path / f"{number}.tar", "w") as archive:
            for name in "ab":
                member = tarfile.TarInfo(f"{name}.bin")
                member.size = 1000
                archive.addfile(member, io.BytesIO(bytes(1000)))
    paths = sorted(str(path) for path in tmp_path.iterdir())
    nodes = nodes_of(FileOpener(IterableWrapper(paths), mode="rb").load_from_tar().read_from_stream())
    members = sum(map(len, paths)) * 2 + 8 * len("/a.bin")
    assert nodes["TarArchiveLoader"].bytes == nodes["StreamReader"].bytes == members + 8000
