"""What mkdocs.yml calls while the site is built: pages that are made, links, navigation, and a check of the result."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import links
import reference
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parents[2]
ASSETS = ("iframe-worker.js", "site.css")
MORE = "How to"  # where pages go that the navigation does not name

_MODULE = re.compile(r'<h\d id="([\w.]+)"[^>]*>\s*<code class="[^"]*doc-symbol-module"')

_repository_paths: dict[str, str] = {}  # of pages in the site that stand elsewhere in the repository


def on_config(config: Any) -> Any:
    """The navigation as the pages are: without those that are not there yet, and with those that it does not name."""
    docs = Path(config.docs_dir)
    there = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}
    made = {*links.PAGES.values(), *reference.pages()}

    def kept(entries: list[Any]) -> list[Any]:
        new = []
        for entry in entries:
            ((title, value),) = entry.items() if isinstance(entry, dict) else ((None, entry),)
            if isinstance(value, list):
                new.append({title: kept(value)})
            elif value in there | made:
                new.append(entry)
                named.add(value)
        return new

    named: set[str] = set()
    config.nav = kept(config.nav)
    guides = next(entry[MORE] for entry in config.nav if MORE in entry)
    guides += sorted(there - named)
    config.nav.insert(-1, {"Reference": _reference_nav()})
    return config


def _reference_nav() -> list[Any]:
    rooms = [f"reference/iter/{room}.md" for room in reference.node_rooms()]
    nav: list[Any] = ["reference/index.md"]
    for module in reference.MODULES:
        page = f"reference/{module}.md"
        nav.append({module: [page, *rooms]} if module == reference.NODES else {module: page})
    return nav


def on_files(files: Files, config: Any) -> Files:
    """Adds the reference, the pages that stand outside docs/, and whatever any page links to."""
    for name, text in reference.pages().items():
        files.append(File.generated(config, name, content=text))
    for name in ASSETS:
        files.append(File.generated(config, f"assets/{name}", abs_src_path=str(Path(__file__).parent / name)))
    for path, name in links.PAGES.items():
        files.append(File.generated(config, name, content=(ROOT / path).read_text()))
        _repository_paths[name] = path
    for file in list(files.documentation_pages()):
        if not file.src_uri.startswith("reference/"):
            for path in links.linked(file.content_string, _repository_path(file.src_uri)):
                _add_target(files, path, config)
    return files


def _repository_path(name: str) -> str:
    return _repository_paths.get(name, f"docs/{name}")


def _add_target(files: Files, path: str, config: Any) -> None:
    name = links.target_in_site(path)
    if not (ROOT / path).exists() or files.get_file_from_path(name) is not None:
        return
    if path.endswith(links.IMAGES):
        files.append(File.generated(config, name, abs_src_path=str(ROOT / path)))
        return
    text = links.source_page(path)
    files.append(File.generated(config, name, content=text, inclusion=InclusionLevel.NOT_IN_NAV))
    _repository_paths[name] = f"{path}/index.md" if (ROOT / path).is_dir() else path
    if (ROOT / path).is_dir():
        for inside in links.linked(text, f"{path}/index.md"):
            _add_target(files, inside, config)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links that lead out of docs/ lead to where the site has what they mean."""
    if page.file.src_uri.startswith("reference/"):
        return markdown
    return links.rewritten(markdown, _repository_path(page.file.src_uri))


def on_post_build(config: Any) -> None:
    """Nothing is missing, and nothing is loaded from elsewhere. Raises: PluginError otherwise."""
    site = Path(config.site_dir)
    pages = {path: path.read_text() for path in site.rglob("*.html")}
    anchors = {anchor for text in pages.values() for anchor in re.findall(r'\bid="([\w.]+)"', text)}
    wanted = {name.path for module in reference.MODULES for name in reference.module_names(module)}
    if missing := sorted(wanted - anchors):
        raise PluginError(f"public names without a place in the reference: {missing}")
    modules = {anchor for text in pages.values() for anchor in _MODULE.findall(text)}
    if wrong := sorted(wanted & modules):
        raise PluginError(f"the reference shows modules of these names in their place: {wrong}")
    outside = re.compile(r"<(?:script|img|link|iframe)\b[^>]*\b(?:src|href)=\"(?:https?:)?//[^\"]*\"[^>]*>")
    for path, text in pages.items():
        if found := [tag for tag in outside.findall(text) if 'rel="canonical"' not in tag]:
            raise PluginError(f"{path.relative_to(site)} loads from elsewhere: {found[0]}")
