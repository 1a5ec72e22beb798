"""The init container that loads LMCache's native kernels in the engine's own image (spec 04 §7).

Importing the extension proves nothing, because LMCache falls back to a slow path when it cannot be loaded. So the check
finds the shared object without importing the package and loads it with the dynamic linker. It runs the image's own
`python3` without a shell: images need not have one.
"""

from __future__ import annotations

import copy
from typing import Any, Final

from inferencecache.adapters.pods import KERNEL_CHECK
from inferencecache.adapters.registry import Container
from inferencecache.api.quantity import Quantity

STRICT: Final = "KERNEL_CHECK_STRICT"
TERMINATION_LOG: Final = "/dev/termination-log"
GPU: Final = "nvidia.com/gpu"

SCRIPT: Final = f'''\
import ctypes, glob, importlib.util, os, sys

LIMIT = 3500


def report(message):
    try:
        with open("{TERMINATION_LOG}", "w", encoding="utf-8", errors="replace") as log:
            log.write(message[:LIMIT])
    except Exception:
        pass


def check():
    spec = importlib.util.find_spec("lmcache")
    places = list(spec.submodule_search_locations or []) if spec else []
    if not places:
        return "lmcache not importable"
    libraries = sorted(glob.glob(os.path.join(glob.escape(places[0]), "c_ops*.so")))
    if not libraries:
        return "no native c_ops extension present (pure-python/CPU build)"
    import torch  # the extension links against libtorch
    ctypes.CDLL(libraries[0])
    return ""


try:
    reason = check()
except BaseException as error:  # an import that exits must not decide how this process ends
    reason = "%s: %r" % (type(error).__name__, error)
report("FAIL: " + reason if reason else "OK")
sys.exit(1 if reason and os.environ.get("{STRICT}") == "1" else 0)
'''

_INHERITED: Final = (
    "image",
    "imagePullPolicy",
    "workingDir",
    "securityContext",
    "envFrom",
    "volumeMounts",
    "volumeDevices",
)


def kernel_check_container(mode: str, engine: Container) -> Container | None:
    """The check for a wired engine container, or None when the mode or the engine does not ask for one.

    `auto` asks only for engines with a GPU: a CPU build rightly has no kernels. The check declares small requests and
    no limits, the shape that the fewest namespace policies refuse.
    """
    if mode == "off" or (mode == "auto" and not _has_gpu(engine)) or not engine.get("image"):
        return None
    inherited = {field: copy.deepcopy(engine[field]) for field in _INHERITED if engine.get(field)}
    env = [copy.deepcopy(entry) for entry in engine.get("env") or () if entry.get("name") != STRICT]
    return {
        "name": KERNEL_CHECK,
        **inherited,
        "command": ["python3", "-c", SCRIPT],
        "env": [*env, {"name": STRICT, "value": "1" if mode == "strict" else "0"}],
        "resources": {"requests": {"cpu": "50m", "memory": "256Mi"}},
        "terminationMessagePath": TERMINATION_LOG,
        "terminationMessagePolicy": "File",
    }


def _has_gpu(container: Container) -> bool:
    resources: dict[str, Any] = container.get("resources") or {}
    return any(_positive((resources.get(part) or {}).get(GPU)) for part in ("limits", "requests"))


def _positive(amount: Any) -> bool:
    try:
        return amount is not None and Quantity(amount).value > 0
    except ValueError:
        return False  # the API server will refuse the Pod
