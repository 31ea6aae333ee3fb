"""Links that are right in the repository, made right in the site: what they lead to comes into the site as well.

Pages of ``docs/`` link to tests, examples and files of the repository's root. Some of these are pages of the site
(:data:`PAGES`), images are copied, and all other files are shown as they are, under ``source/``. So the site needs no
host of the repository, nor a network. Runs while the site is built.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

__all__ = ["PAGES", "linked", "rewritten", "source_page", "target_in_site"]

ROOT = Path(__file__).resolve().parents[2]

# Files outside docs/ that are pages of the site, and where.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "benchmarks.md",
}
IMAGES = (".png", ".svg")
LANGUAGES = {".py": "python", ".sh": "bash", ".toml": "toml", ".yml": "yaml", ".json": "json"}
_LINK = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)#\s]+)((?:#[^)\s]*)?\))")
_FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2[ ]*$", re.MULTILINE | re.DOTALL)


def _outside_code(markdown: str) -> list[tuple[bool, str]]:
    """The text in pieces; those that are fenced code come with False."""
    pieces, at = [], 0
    for fence in _FENCE.finditer(markdown):
        pieces += [(True, markdown[at : fence.start()]), (False, fence.group())]
        at = fence.end()
    return [*pieces, (True, markdown[at:])]


def target_in_site(path: str) -> str:
    """Where the site has what the repository has at ``path``."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path in PAGES:
        return PAGES[path]
    if (ROOT / path).is_dir():
        return f"source/{path}/index.md"
    return f"source/{path}" if path.endswith(IMAGES) else f"source/{path}.md"


def linked(markdown: str, page: str) -> list[str]:
    """The paths in the repository that a page, itself a path there, links to."""
    found = [match[2] for prose, text in _outside_code(markdown) if prose for match in _LINK.finditer(text)]
    return [posixpath.normpath(posixpath.join(posixpath.dirname(page), target)) for target in found]


def rewritten(markdown: str, page: str) -> str:
    """The page's text with links as the site needs them. What leads nowhere stays, and the build says so."""
    here = posixpath.dirname(target_in_site(page))

    def one(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), match[2]))
        if not (ROOT / path).exists():
            return match.group()
        return f"{match[1]}{posixpath.relpath(target_in_site(path), here or '.')}{match[3]}"

    return "".join(_LINK.sub(one, text) if prose else text for prose, text in _outside_code(markdown))


def source_page(path: str) -> str:
    """A file of the repository as a page, or a list of what a folder has."""
    place = ROOT / path
    hidden = "---\nsearch:\n  exclude: true\n---\n\n"
    if place.is_dir():
        inside = sorted(child.name for child in place.iterdir() if child.is_file() and not child.name.startswith("."))
        files = "\n".join(f"- [{name}]({name})" for name in inside if name != "__init__.py")
        return f"{hidden}# {path}\n\n{files}\n"
    language = LANGUAGES.get(place.suffix, "text")
    return f'{hidden}# {path}\n\n~~~~~~{language} linenums="1"\n{place.read_text()}\n~~~~~~\n'
