"""Blocks of documentation pages that are filled in by running the operator's own code on the samples.

A page is written by hand; between two comments in it stands what a sample says, what the operator would run for it, or
what an engine Pod becomes:

    <!-- sample: cachebackend-lmcache -->
    <!-- children: cachebackend-lmcache -->
    <!-- pod: cachebackend-lmcache -->

each up to the next `<!-- end -->`. The Pod is `engine-<container>.yaml` beside the page, with the labels that the
sample's backend selects. The list of samples is made from the comments they start with.
"""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from inferencecache import __version__
from inferencecache.adapters.registry import Settings, load_adapters
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.cli.documents import load
from inferencecache.cli.install import POOL_NAMESPACE
from inferencecache.cli.offline import DEFAULT_NAMESPACE, objects_of
from inferencecache.cli.offline_pools import chains, on_pool
from inferencecache.cli.output import to_yaml_stream, unified_diff
from inferencecache.cli.reference.markdown import GENERATED, fenced, table
from inferencecache.controllers.cachebackend.children import children_for
from inferencecache.controllers.cachebackend.plan import plan_for
from inferencecache.controllers.cachebackend.published import as_published
from inferencecache.webhooks import injection
from inferencecache.webhooks.pods import view_of

_BLOCK: Final = re.compile(r"(<!-- (\w+): ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
_SETTINGS: Final = Settings(kvevent_subscriber_image=f"inferencecache-subscriber:{__version__}")


SKIP_MARK: Final = "# verify-samples: skip"
"""First line of a sample that a dry run cannot try as it is."""


class BlockError(Exception):
    """A block that cannot be filled; the message names it and says why."""


def filled(page: str, *, samples: Path, engines: Path) -> str:
    """The page with every block as it follows from the code. Raises `BlockError`.

    Args:
        samples: the folder of the samples.
        engines: the folder of the engine Pods.
    """

    def block(match: re.Match[str]) -> str:
        start, what, name, _, end = match.groups()
        path = samples / f"{name}.yaml"
        if what not in _BLOCKS:
            raise BlockError(f"<!-- {what}: {name} -->: there are blocks {', '.join(_BLOCKS)}")
        if not path.exists():
            raise BlockError(f"<!-- {what}: {name} -->: no such sample")
        return f"{start}\n{_BLOCKS[what](path, engines)}\n{end}"

    return _BLOCK.sub(block, page)


def samples_page(samples: Path) -> str:
    """The list of the samples in a folder, each with what its first comment says."""
    rows = [(f"[{path.stem}]({path.name})", _comment(path)) for path in sorted(samples.glob("*.yaml"))]
    return f"# Samples\n\n{GENERATED}\n\n{table(('Sample', 'What it shows'), rows)}"


def _comment(path: Path) -> str:
    lines = itertools.takewhile(lambda line: line.startswith("#"), path.read_text().splitlines())
    return " ".join(line.removeprefix("#").strip() for line in lines if line != SKIP_MARK)


def _sample(path: Path, engines: Path) -> str:
    """The sample as it is."""
    return fenced("yaml", path.read_text())


def _children(path: Path, engines: Path) -> str:
    """What the operator would run."""
    backend = _backend(path)
    store = plan_for(backend, *load_adapters()).store
    if store is None:
        return "Nothing.\n"
    children = children_for(backend, store, live_replicas=None)
    return fenced("yaml", to_yaml_stream([one for one in (children.workload, children.service) if one]))


def _pod(path: Path, engines: Path) -> str:
    """How an engine Pod changes."""
    runtimes, storage = load_adapters()
    backend, _ = on_pool(as_published(_backend(path), runtimes, storage), chains(load([str(path)]), POOL_NAMESPACE))
    engine = runtimes.select(backend.runtime_id, backend).engine_container_name()
    (document,) = load([str(engines / f"engine-{engine}.yaml")])
    before = _labelled(document.manifest, backend.selector)
    done = injection.inject(before, view_of(before), DEFAULT_NAMESPACE, [backend], runtimes, _SETTINGS)
    return fenced("diff", unified_diff(before, done.pod, "pod.yaml"))


def _backend(path: Path) -> CacheBackend:
    (backend,) = objects_of(CacheBackend, load([str(path)]))
    return backend


def _labelled(pod: Mapping[str, Any], labels: Mapping[str, str]) -> dict[str, Any]:
    labelled = copy.deepcopy(dict(pod))
    labelled["metadata"]["labels"] = dict(labels)
    return labelled


_BLOCKS: Final = {"sample": _sample, "children": _children, "pod": _pod}
