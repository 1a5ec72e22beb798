"""The functional probe: does what producers report come out of lookups again (spec 06 §4.4)?

For each backend the controller asks now and then, and takes the backend's readiness back if the answer is no. A run
sends one made-up block through the index under a tenant that nobody else sees, looks for it, and removes it. Index
stages and removal happen without giving way to anything else on the event loop, so no lookup ever meets a probe's keys;
only the tier-2 stage, a round trip through the backend's store, waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator
from typing import Final, Protocol

import msgspec
from msgspec import Struct, field

from inferencecache.server import bodies
from inferencecache.server.clock import Clock
from inferencecache.server.index import RESERVED_TENANT, Code, Holds, PrefixIndex, Query, Report, Scope, Stats

MAX_BODY_BYTES: Final = 4 << 10
BLOCK_TOKENS: Final = 16
TIER2_SECONDS: Final = 3.0
"""The caller gives up after five."""

OK: Final = "ok"
FAILED: Final = "failed"
SKIPPED: Final = "skipped"

_HASH_DOMAIN: Final = b"inferencecache.io/probe/v1\n"
_PAYLOAD_DOMAIN: Final = b"probe-payload-v1\n"
_TIER2_BACKENDS: Final = ("", "LMCache")


class ProbeError(ValueError):
    """A request for a probe cannot be used; the message names the field."""


class ProbeRequest(Struct, rename="camel", forbid_unknown_fields=True, frozen=True):
    """Which backend to probe, `namespace/name`, and with which keys."""

    backend: str = ""
    model: str = ""
    hash_scheme: str = ""
    backend_type: str = ""


class StageError(Struct, frozen=True):
    """Why a stage failed."""

    stage: str
    message: str


class ProbeResult(Struct, frozen=True, omit_defaults=True):
    """Each stage's outcome: `ok`, `failed` or `skipped`."""

    backend: str
    ingest: str
    routing: str
    t2: str
    errors: tuple[StageError, ...] = field(default=())


class Tier2Prober(Protocol):
    """A way to a backend's external store. Any exception fails the stage; its text is shown to the operator."""

    async def put(self, backend: str, key: bytes, payload: bytes) -> None:
        """Store `payload` under `key`."""

    async def get(self, backend: str, key: bytes) -> bytes | None:
        """What is stored under `key`."""


def parse(body: bytes) -> ProbeRequest:
    """The request in `body`.

    Raises:
        ProbeError: larger than 4 KiB, not exactly one JSON object of this shape, or a required field is empty.
    """
    request = bodies.decode(body, _decoder, what="probe request", max_bytes=MAX_BODY_BYTES, error=ProbeError)
    required = {"backend": request.backend, "model": request.model, "hashScheme": request.hash_scheme}
    if missing := [name for name, value in required.items() if not value]:
        raise ProbeError(f"probe request: {', '.join(missing)} must be set")
    return request


_decoder: Final = msgspec.json.Decoder(ProbeRequest)


def probe_hash(backend: str, model: str, hash_scheme: str) -> bytes:
    """The key a probe uses: the same for the same request, and for no other (spec 07 §6)."""
    digest = hashlib.sha256(_HASH_DOMAIN)
    for text in (hash_scheme, model, backend):
        encoded = text.encode()
        digest.update(len(encoded).to_bytes(4, "big") + encoded)
    return digest.digest()


class Prober:
    """Runs probes against one index; those of one backend and model one after the other."""

    def __init__(self, index: PrefixIndex, *, tier2: Tier2Prober | None = None, clock: Clock | None = None) -> None:
        self._index = index
        self._tier2 = tier2
        self._wall_us = (clock or Clock()).wall_us
        self._turns: dict[tuple[str, str], _Turn] = {}

    async def run(self, request: ProbeRequest) -> ProbeResult:
        """Every stage's outcome. Never raises."""
        async with self._turn(request.backend, request.model):
            key = probe_hash(request.backend, request.model, request.hash_scheme)
            failure = self._through_index(request, key)
            if failure is not None:
                return ProbeResult(
                    backend=request.backend,
                    ingest=FAILED if failure.stage == "ingest" else OK,
                    routing=FAILED if failure.stage == "routing" else SKIPPED,
                    t2=SKIPPED,
                    errors=(failure,),
                )
            if self._tier2 is None or request.backend_type not in _TIER2_BACKENDS:
                return ProbeResult(request.backend, ingest=OK, routing=OK, t2=SKIPPED)
            failure = await _through_tier2(self._tier2, request.backend, key)
            return ProbeResult(
                backend=request.backend,
                ingest=OK,
                routing=OK,
                t2=OK if failure is None else FAILED,
                errors=() if failure is None else (failure,),
            )

    def _through_index(self, request: ProbeRequest, key: bytes) -> StageError | None:
        """Ingest and routing; leaves nothing behind, whatever happens."""
        replica = f"__probe-{request.backend}"
        scope = Scope(RESERVED_TENANT, request.model, request.hash_scheme)
        now_us = self._wall_us()
        stage = "ingest"
        try:
            with contextlib.ExitStack() as residue:
                residue.callback(self._index.clear, tenant=RESERVED_TENANT, model=request.model, replica_id=replica)
                self._index.ingest(_report(scope, replica, key, now_us), now_us)
                if replica not in self._index.serving(scope):
                    return StageError(stage, f"the reported block of {replica} is not in the index")
                stage = "routing"
                code, scores = self._index.match(_query(scope, key), now_us)
                if code is not Code.PREFIX_MATCH:
                    return StageError(stage, f"a lookup of the reported block gave {code.value}, not PREFIX_MATCH")
                if replica not in [score.replica_id for score in scores]:
                    return StageError(stage, f"a lookup of the reported block gave PREFIX_MATCH without {replica}")
        except Exception as error:
            return StageError(stage, f"{type(error).__name__}: {error}")
        return None

    @contextlib.asynccontextmanager
    async def _turn(self, backend: str, model: str) -> AsyncIterator[None]:
        key = (backend, model)
        turn = self._turns.setdefault(key, _Turn())
        turn.takers += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.takers -= 1
            if not turn.takers:
                del self._turns[key]


class _Turn:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.takers = 0


async def _through_tier2(prober: Tier2Prober, backend: str, key: bytes) -> StageError | None:
    payload = _PAYLOAD_DOMAIN + key
    step = "put"
    try:
        async with asyncio.timeout(TIER2_SECONDS):
            await prober.put(backend, key, payload)
            step = "get"
            found = await prober.get(backend, key)
    except TimeoutError:
        cause = f"no answer within {TIER2_SECONDS:g} s"
    except Exception as error:
        cause = str(error) or type(error).__name__
    else:
        if found == payload:
            return None
        cause = "nothing is stored under the key" if found is None else "another payload is stored under the key"
    return StageError("t2", f"T2 put/get cycle failed: {step} failed: {cause}")


def _report(scope: Scope, replica: str, key: bytes, now_us: int) -> Report:
    return Report(
        replica_id=replica,
        tenant=scope.tenant,
        model=scope.model,
        hash_scheme=scope.hash_scheme,
        timestamp_us=now_us,
        holds=(Holds(adapter_id="", tier=1, hashes=(key,), token_counts=(BLOCK_TOKENS,)),),
        stats=Stats(cache_memory_bytes=0, hit_rate=1.0, pressure=0.0),
    )


def _query(scope: Scope, key: bytes) -> Query:
    return Query(scope=scope, adapter_id="", chain=(key,), chain_counts=(BLOCK_TOKENS,), exact=b"", ttft_ms=0)
