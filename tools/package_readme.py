"""The README as a package index shows it, where links into the repository lead nowhere. A hook of hatchling.

With an address of the repository (``Source`` in ``[project.urls]``) links become absolute; without one, their text is
kept.
Runs while a wheel or a source distribution is built.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

__all__ = ["PackageReadme", "for_package"]

_RELATIVE = r"\((?!https?:|mailto:|#)([^)\s]+)\)"
_IMAGE = re.compile(r"^!\[[^\]]*\]" + _RELATIVE + r"\n+", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]*)\]" + _RELATIVE)


def for_package(text: str, source: str | None) -> str:
    """The README's text. ``source`` is the address of the repository, as GitHub and GitLab build addresses of files."""
    if source is None:
        return _LINK.sub(r"\1", _IMAGE.sub("", text))
    base = source.rstrip("/")
    text = _IMAGE.sub(lambda image: image[0].replace(image[1], f"{base}/raw/main/{image[1]}"), text)
    return _LINK.sub(rf"[\1]({base}/blob/main/\2)", text)


class PackageReadme(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text("utf-8")
        source = metadata.get("urls", {}).get("Source")
        metadata["readme"] = {"content-type": "text/markdown", "text": for_package(text, source)}
