"""Audits by many workers at a time: a run cut at its published states, whose intervals are executed side by side.

What a name needs is loaded when it is first used, since PyTorch takes seconds, and Ray is an optional extra.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roundlog.parallel.audit import audit_in_parallel
    from roundlog.parallel.cluster import cluster_workers, connect_cluster
    from roundlog.parallel.listing import (
        CHECKPOINTS_FILE,
        MAX_LIST_BYTES,
        Listing,
        ListingError,
        Look,
        Publisher,
        listing_of_run,
        most_list_bytes,
        read_address_of_job,
        read_listing,
        settled,
    )
    from roundlog.parallel.local import Directories, keep_published
    from roundlog.parallel.plan import units
    from roundlog.parallel.result import ParallelAudit, Reports, Sharing
    from roundlog.parallel.segment import StateSource, UnusableState
    from roundlog.parallel.worker_pool import NoWorkersError
    from roundlog.parallel.workers import process_workers

_FILES = {
    "CHECKPOINTS_FILE": "listing",
    "Directories": "local",
    "Listing": "listing",
    "ListingError": "listing",
    "Look": "listing",
    "MAX_LIST_BYTES": "listing",
    "NoWorkersError": "worker_pool",
    "ParallelAudit": "result",
    "Publisher": "listing",
    "Reports": "result",
    "Sharing": "result",
    "StateSource": "segment",
    "UnusableState": "segment",
    "audit_in_parallel": "audit",
    "cluster_workers": "cluster",
    "connect_cluster": "cluster",
    "keep_published": "local",
    "listing_of_run": "listing",
    "most_list_bytes": "listing",
    "process_workers": "workers",
    "read_address_of_job": "listing",
    "read_listing": "listing",
    "settled": "listing",
    "units": "plan",
}

__all__ = [
    "CHECKPOINTS_FILE",
    "MAX_LIST_BYTES",
    "Directories",
    "Listing",
    "ListingError",
    "Look",
    "NoWorkersError",
    "ParallelAudit",
    "Publisher",
    "Reports",
    "Sharing",
    "StateSource",
    "UnusableState",
    "audit_in_parallel",
    "cluster_workers",
    "connect_cluster",
    "keep_published",
    "listing_of_run",
    "most_list_bytes",
    "process_workers",
    "read_address_of_job",
    "read_listing",
    "settled",
    "units",
]


def __getattr__(name: str) -> object:
    if name not in _FILES:
        raise AttributeError(f"roundlog.parallel has no {name}: its public names are {', '.join(__all__)}")
    return getattr(import_module(f"roundlog.parallel.{_FILES[name]}"), name)
