"""The documentation site builds without warnings, every public name has an entry, and every internal link has a target.

It needs the extra `docs`. Tests that read only the sources run without it. A build takes half a minute, so the built
site is checked under ``pytest -m slow``, and by `.ci/run`, which builds the site anyway and names it in RINGTAPE_SITE.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
import types
import zlib
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PACKAGES = ("autograd", "collectives", "parallel")
MISSING = [name for name in ("sphinx", "numpydoc", "myst_parser", "furo") if find_spec(name) is None]
needs_docs = pytest.mark.skipif(bool(MISSING), reason="needs the extra docs: pip install -e '.[docs]'")


def documented_modules() -> list[str]:
    """The modules that the pages of the reference name."""
    pages = "".join(page.read_text() for page in sorted((DOCS / "reference").glob("*.rst")))
    return sorted(set(re.findall(r"^\.\. (?:public|numpy)-names:: (\S+)$", pages, re.MULTILINE)))


def load(module: str) -> types.ModuleType:
    """Import a module by its public name, which may be an attribute: `autograd.events`."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        parent, _, name = module.rpartition(".")
        return getattr(importlib.import_module(parent), name)


def public_names(modules: list[str]) -> set[str]:
    """All names in ``__all__`` of the modules, qualified, with the modules themselves."""
    return {*modules, *(f"{m}.{name}" for m in modules for name in load(m).__all__)}


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    """Build with Sphinx's own theme, which takes a quarter less; `.ci/run` builds the site as it is."""
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-D", "html_theme=basic",
               "-d", f"{folder}/doctrees", "docs", f"{folder}/html"]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=ROOT, check=False)


def entries(site: Path) -> set[str]:
    """The names of Python objects and modules in the inventory of a site."""
    data = (site / "objects.inv").read_bytes()
    lines = zlib.decompress(data.split(b"\n", 4)[4]).decode().splitlines()
    return {line.split()[0] for line in lines if line.split()[1].startswith("py:")}


class Page(HTMLParser):
    """The links of a page, and the targets that it has."""

    def __init__(self, path: Path):
        super().__init__()
        self.links: set[str] = set()
        self.targets: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.targets.update(found[name] or "" for name in ("id", "name") if name in found)
        link = found.get("href") if tag == "a" else found.get("src") if tag == "img" else None
        if link and not re.match(r"\w+:|//", link):
            self.links.add(unquote(link))


def dead_links(site: Path) -> list[str]:
    pages = {path: Page(path) for path in site.rglob("*.html") if "_static" not in path.parts}
    dead = []
    for path, page in pages.items():
        for link in page.links:
            name, _, target = link.partition("#")
            other = (path.parent / name).resolve() if name else path
            exists = other.exists() and (not target or other not in pages or target in pages[other].targets)
            if not exists:
                dead.append(f"{path.relative_to(site)}: {link}")
    return sorted(dead)


TASKS = {
    "install it": "index.html#install",
    "compute a gradient": "guides/tape.html#a-gradient",
    "understand the labels": "guides/layouts.html",
    "train on several ranks": "guides/training_step.html",
    "set a learning-rate schedule": "guides/training_step.html#learning-rate-schedules-and-clipping",
    "accumulate gradients": "guides/training_step.html#gradient-accumulation",
    "train in mixed precision": "guides/training_step.html#mixed-precision",
    "stop early": "guides/training_step.html#validation-and-early-stopping",
    "read batches": "guides/data.html#data-sets-and-batches",
    "save a run and continue it": "guides/data.html#a-run-that-continues",
    "log to CSV and TensorBoard": "guides/data.html#log-and-progress",
    "compile a step": "guides/captured_steps.html",
    "use a GPU": "guides/gpu.html",
    "shard the optimizer's state": "guides/data_parallel.html#sharded-state",
    "compress gradients": "guides/data_parallel.html#compression",
    "use LocalSGD": "guides/data_parallel.html#fewer-synchronisations",
    "train a transformer on any mesh": "guides/model_parallel.html#a-transformer",
    "run a pipeline": "guides/pipeline.html",
    "divide a sequence": "guides/context_parallel.html",
    "know why a gradient is n times too large": "guides/scale.html",
    "look up a refusal": "refusals.html",
    "set an environment variable": "checking.html#environment-variables",
    "audit a job of PyTorch": "guides/audit.html",
    "add an operation": "engine.html#add-an-operation",
    "see what every rank did": "guides/page.html",
    "replay a job": "guides/replay.html",
    "run under Slurm": "guides/cluster.html#slurm",
    "go on without ranks that die": "guides/elastic.html",
    "translate a program of torch": "guides/torch.html",
    "find what to write for a name of JAX": "names.html#jax",
}
"""What people want to do, and the place on the site that says how."""


def clicks(site: Path) -> dict[str, int]:
    """How many clicks on links of texts lead from the home page to each task; a heading of a page is one click more."""
    texts = {path: re.split(r'</article>|class="sphinxsidebar"', path.read_text().partition('role="main"')[2])[0]
             for path in site.rglob("*.html")}  # fmt: skip
    home = (site / "index.html").resolve()
    found, ways = {str(home): 0}, [home]
    for path in ways:
        for link in re.findall(r'href="([^"]+)"', texts.get(path, "")):
            name, _, target = link.partition("#")
            other = (path.parent / name).resolve() if name else path
            for place in (str(other), f"{other}#{target}"):
                found.setdefault(place, found[str(path)] + 1)
            if other in texts and other not in ways:
                ways.append(other)
    paths = {task: str(home.parent / place) for task, place in TASKS.items()}
    return {task: min(found.get(path, 99), found.get(path.partition("#")[0], 99) + ("#" in path))
            for task, path in paths.items()}  # fmt: skip


def test_every_public_module_has_a_page() -> None:
    """Public are the packages, and the modules in ``__all__`` of public modules that are part of the library."""
    modules, waiting = set(), list(PACKAGES)
    while waiting:
        name = waiting.pop()
        modules.add(name)
        found = [(n, getattr(load(name), n)) for n in load(name).__all__]
        waiting += [f"{name}.{n}" for n, x in found
                    if isinstance(x, types.ModuleType) and x.__name__.split(".")[0] in PACKAGES]  # fmt: skip
    passed_on = {"autograd.numpy.random"}  # numpy.random, unchanged
    missing = modules - set(documented_modules()) - passed_on
    assert not missing, f"add them to docs/public_names.py and docs/reference: {sorted(missing)}"


def test_all_that_is_public_exists() -> None:
    """No submodule hides a function of the same name, as `autograd.nn.convolution` once did."""
    from autograd import nn

    assert callable(nn.convolution)
    modules = {"errors", "events", "functional", "init", "nn", "optim", "random", "schedules", "testing", "utils"}
    for module in ("autograd", "autograd.nn", "autograd.optim", "collectives", "parallel"):
        found = load(module)
        assert {n for n in found.__all__ if isinstance(getattr(found, n), types.ModuleType)} <= modules


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A copy of the site in the folder RINGTAPE_SITE, or the site that is built now."""
    html = tmp_path / "html"
    if "RINGTAPE_SITE" in os.environ:
        shutil.copytree(os.environ["RINGTAPE_SITE"], html)
    else:
        done = build(tmp_path)
        assert done.returncode == 0, done.stderr
    return html


@needs_docs
@pytest.mark.slow
@pytest.mark.timeout(600)  # a build takes half a minute on an idle core
def test_the_site_has_every_name_and_no_dead_link(site: Path) -> None:
    missing = public_names(documented_modules()) - entries(site)
    assert not missing, sorted(missing)
    assert dead_links(site) == []

    ways = clicks(site)
    assert len(ways) == 30 and max(ways.values()) <= 3, {task: count for task, count in ways.items() if count > 3}
    targets = {path: Page(path).targets for path in site.rglob("*.html")}
    headings = [place.split("#") for place in TASKS.values() if "#" in place]
    assert not [place for place in headings if place[1] not in targets[site / place[0]]]

    page = site / "guides" / "layouts.html"  # and both checks can fail
    page.write_text(page.read_text().replace("</body>", '<a href="nowhere.html">x</a><a href="#none">y</a></body>'))
    assert dead_links(site) == ["guides/layouts.html: #none", "guides/layouts.html: nowhere.html"]
    assert public_names(["autograd.engine.state"]) - entries(site)
