#!/opt/inferencecache/bin/python
"""Takes the command line of an engine, as the webhook completed it, and then behaves like the fake engine.

Says in its first line what it was given, so that a test reads from a running container what was wired and not from its
description. $FAKE_ENGINE_ARGS are the arguments of `inferencecache kvevent-fake-engine`. The commands `crash` and
`sleep` do that.
"""

import json
import os
import shlex
import sys
import time
from pathlib import Path

WIRING = ("LMCACHE_", "INFERENCECACHE_", "PYTHONHASHSEED", "VLLM_")

given = sys.argv[1:]
environment = {name: value for name, value in os.environ.items() if name.startswith(WIRING)}
if "--kv-transfer-config" in given:
    json.loads(given[given.index("--kv-transfer-config") + 1])
if "--lmcache-config-file" in given:
    environment["config"] = Path(given[given.index("--lmcache-config-file") + 1]).read_text()
print(json.dumps({"args": given, "env": environment}), flush=True)
match given[:1]:
    case ["crash"]:
        sys.exit(1)
    case ["sleep"]:
        time.sleep(1e9)

from inferencecache.cli.main import main  # noqa: E402

sys.argv = ["inferencecache", "kvevent-fake-engine", *shlex.split(os.environ.get("FAKE_ENGINE_ARGS", ""))]
main()
