"""What can be found, and under which code (spec 09 §1.3).

A code is for scripts: its number, its status and what it means never change, new ones are added at the end of their
family. The text of a finding is for people; it names what was seen and the remedy.

The families KB, KP, KN, WH and CD and the codes CB008 and EP003 are additions to the contract's; docs/doctor.md says
why.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Status(StrEnum):
    """How bad a finding is."""

    OK = "OK"
    INFO = "INFO"
    WARN = "WARN"
    FAIL = "FAIL"


class Check(StrEnum):
    """The checks by the names that reports use, in the order in which they report."""

    SERVER = "ServerReachability"
    SNAPSHOT = "SnapshotReachability"
    POLICY = "PolicyReachability"
    PROBE = "ProbeReachability"
    BACKENDS = "CacheBackendHealth"
    INJECTION = "EnginePodInjectionAudit"
    ORPHANS = "OrphanPodCheck"
    TENANTS = "CacheTenantHealth"
    POLICIES = "CachePolicyCoverage"
    STORES = "KVCacheBackendHealth"
    POOLS = "KVCachePoolHealth"
    BINDINGS = "KVCachePoolBindingHealth"
    ADMISSION = "AdmissionHealth"
    KINDS = "CustomResourceHealth"


@dataclass(frozen=True, slots=True)
class Code:
    """A code's status and, for docs/doctor.md, what it means."""

    status: Status
    meaning: str


CODES: Final[dict[str, Code]] = {
    "API001": Code(Status.FAIL, "objects could not be read"),
    "SV001": Code(Status.FAIL, "the server's gRPC port gives no answer"),
    "SV002": Code(Status.FAIL, "the server says that it is not serving"),
    "SV003": Code(Status.OK, "the server serves"),
    "SN001": Code(Status.FAIL, "/snapshot gives no answer, or a wrong one"),
    "SN002": Code(Status.WARN, "/snapshot answers with something that is no JSON"),
    "SN003": Code(Status.INFO, "/snapshot answers callers without a token"),
    "SN004": Code(Status.OK, "/snapshot answers"),
    "SN005": Code(Status.WARN, "/snapshot refuses the token, or asks for one"),
    "PL001": Code(Status.FAIL, "/policy gives no answer, or is not there"),
    "PL002": Code(Status.OK, "/policy is there"),
    "PL003": Code(Status.WARN, "/policy answers with an error"),
    "PB001": Code(Status.FAIL, "/probe gives no answer, or is not there"),
    "PB002": Code(Status.OK, "/probe is there"),
    "PB003": Code(Status.WARN, "/probe answers with an error"),
    "CB001": Code(Status.WARN, "a backend is not Ready"),
    "CB002": Code(Status.WARN, "a selector matches no Pod"),
    "CB003": Code(Status.WARN, "no KV event has ever been seen"),
    "CB004": Code(Status.WARN, "events stopped, and the sidecars are silent too"),
    "CB005": Code(Status.WARN, "the store has no address, or does not answer"),
    "CB006": Code(Status.OK, "nothing is wrong with a backend"),
    "CB007": Code(Status.WARN, "the functional probe fails"),
    "CB008": Code(Status.INFO, "no new blocks for a while, which an idle engine explains"),
    "EP001": Code(Status.WARN, "a selected Pod was not wired"),
    "EP002": Code(Status.OK, "a selected Pod was wired"),
    "EP003": Code(Status.INFO, "a selected Pod is not wired, as its owner wishes"),
    "OP001": Code(Status.WARN, "a Pod was told that no backend matches it"),
    "CT001": Code(Status.WARN, "a tenant is over its quota"),
    "CT002": Code(Status.OK, "a tenant is within its quota"),
    "CP001": Code(Status.INFO, "a namespace with backends has no policy"),
    "CP002": Code(Status.OK, "a namespace with backends has one policy"),
    "CP003": Code(Status.WARN, "a namespace has several policies"),
    "KB001": Code(Status.WARN, "a store of pools is in trouble"),
    "KB002": Code(Status.INFO, "a store of pools is not up yet"),
    "KB003": Code(Status.WARN, "the deletion of a store is held"),
    "KB004": Code(Status.WARN, "a store is claimed by a pool that does not exist"),
    "KB005": Code(Status.OK, "nothing is wrong with a store of pools"),
    "KP001": Code(Status.WARN, "a pool is in trouble"),
    "KP002": Code(Status.INFO, "a pool is not up yet"),
    "KP003": Code(Status.WARN, "the deletion of a pool is held"),
    "KP004": Code(Status.WARN, "the ceilings add up to more than a pool's total"),
    "KP005": Code(Status.OK, "nothing is wrong with a pool"),
    "KN001": Code(Status.WARN, "a binding is in trouble"),
    "KN002": Code(Status.INFO, "a binding is not up yet"),
    "KN003": Code(Status.WARN, "the deletion of a binding is held"),
    "KN004": Code(Status.INFO, "a domain fills its grant, so the store discards to make room"),
    "KN005": Code(Status.WARN, "a binding names a pool that does not exist"),
    "KN006": Code(Status.OK, "nothing is wrong with a binding"),
    "KN007": Code(Status.WARN, "a binding is claimed by a CacheBackend that does not exist"),
    "WH001": Code(Status.FAIL, "a webhook configuration is not installed"),
    "WH002": Code(Status.FAIL, "a webhook is missing from its configuration"),
    "WH003": Code(Status.WARN, "a webhook is not as this version ships it"),
    "WH004": Code(Status.FAIL, "a caBundle is empty, unreadable or out of date"),
    "WH005": Code(Status.FAIL, "nobody answers for the webhooks: no Service, or no ready endpoint"),
    "WH006": Code(Status.FAIL, "the serving certificate is out of date, of another name or of another CA"),
    "WH007": Code(Status.WARN, "the renewal of the serving certificate is overdue"),
    "WH008": Code(Status.INFO, "the serving certificate was not looked at"),
    "WH009": Code(Status.INFO, "a half has its kinds and no webhooks"),
    "WH010": Code(Status.OK, "nothing is wrong with a part of admission"),
    "CD001": Code(Status.FAIL, "a kind is not installed, and others of its group are"),
    "CD002": Code(Status.FAIL, "a kind is not established, or not served in this version"),
    "CD003": Code(Status.WARN, "a kind lacks fields that this version knows"),
    "CD004": Code(Status.OK, "nothing is wrong with a kind"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found. `resource` is `kind/namespace/name`, an address, or empty if it is about none."""

    code: str
    check: Check
    resource: str
    message: str

    @property
    def status(self) -> Status:
        """How bad it is; the code decides."""
        return CODES[self.code].status
