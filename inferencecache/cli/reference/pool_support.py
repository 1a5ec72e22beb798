"""Which engines a KV cache pool can be given to by a label, judged by admission itself on the smallest Pod of each."""

from __future__ import annotations

from typing import Any, Final

from inferencecache.api import kvcache as k
from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.api.kvcachechain import Chain
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.cli.reference.markdown import code, table
from inferencecache.controllers.kvcachepool.published import as_served
from inferencecache.webhooks.kvcache_injection import Refused, inject, keys

_START: Final = {
    "vLLM": ["vllm", "serve", "model"],
    "SGLang": ["python3", "-m", "sglang.launch_server", "--model-path", "model"],
}
_ENGINES: Final = (("vLLM", ""), ("vLLM", "ascend"), ("SGLang", ""))
_ROLES: Final = {"no role": "", "`Prefill`": "Prefill", "`Decode`": "Decode"}
_INTRODUCTION: Final = f"""\
## Pods with the label `{keys.LABEL_INJECT}`

What a Pod is told that asks for a [KV cache pool](../kv-cache-injection.md) itself, by `engine`, `manufacturer` and
`role`. To it comes `--kv-cache-dtype` of the Binding.
"""
_TRANSPORTS: Final = """\
Whether it is admitted, by the `transport.protocol` of the store.
"""


def pods_on_pools() -> str:
    """The section, in Markdown."""
    told = [
        [_name(*engine), *(code(" ".join(_told(*engine, role))) for role in _ROLES.values())] for engine in _ENGINES
    ]
    admitted = [
        [_name(*engine), *("yes" if _admitted(*engine, protocol) else "no" for protocol in k.TRANSPORTS)]
        for engine in _ENGINES
    ]
    transports = table(["Engine", *map(code, k.TRANSPORTS)], admitted)
    return f"{_INTRODUCTION}\n{table(['Engine', *_ROLES], told)}\n{_TRANSPORTS}\n{transports}"


def _name(engine: str, manufacturer: str) -> str:
    return " ".join(map(code, filter(None, (engine, manufacturer))))


def _told(engine: str, manufacturer: str, role: str) -> list[str]:
    """The arguments that switch the store on."""
    protocol = next(name for name in k.TRANSPORTS if _admitted(engine, manufacturer, name))
    pod = _pod(engine, manufacturer, role)
    given = inject(pod, pod["metadata"]["annotations"], "default", _chain(protocol), dtype_owned=False).pod
    return [str(one) for one in given["spec"]["containers"][0]["args"]]


def _admitted(engine: str, manufacturer: str, protocol: str) -> bool:
    pod = _pod(engine, manufacturer, "")
    try:
        inject(pod, pod["metadata"]["annotations"], "default", _chain(protocol), dtype_owned=True)
    except Refused:
        return False
    return True


def _pod(engine: str, manufacturer: str, role: str) -> dict[str, Any]:
    wanted = {
        keys.ANNOTATION_BINDING: "binding",
        keys.ANNOTATION_ENGINE: engine,
        keys.ANNOTATION_MANUFACTURER: manufacturer,
        keys.ANNOTATION_ROLE: role,
    }
    return {
        "metadata": {"annotations": {name: value for name, value in wanted.items() if value}},
        "spec": {"containers": [{"name": "engine", "command": _START[engine]}]},
    }


def _chain(protocol: str) -> Chain:
    """A Binding on a pool of one member group, served."""
    group = {"nodeSelector": {}, "medium": "DRAM", "capacityPerMember": "1Gi"}
    connection = {"managed": {"leader": {}, "members": [group]}}
    backend = KVCacheBackend.decode(
        {"metadata": {"name": "store"}, "spec": {"transport": {"protocol": protocol}, "connection": connection}}
    )
    spec = {"backends": ["store"], "quota": {"total": "1Gi"}}
    pool = KVCachePool.decode({"metadata": {"name": "pool"}, "spec": spec})
    domain = {"name": "domain", "blockSize": 64, "dtype": "bfloat16"}
    binding = KVCachePoolBinding.decode(
        {
            "metadata": {"name": "binding", "namespace": "default"},
            "spec": {"poolRef": {"name": "pool"}, "quota": {"ceiling": "1Gi"}, "domain": domain},
        }
    )
    return Chain(binding, as_served(pool, backend, "stores"), backend)
