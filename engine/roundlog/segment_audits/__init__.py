"""Audits by segments: a run cut at its published states, whose segments many workers execute side by side.

What a name needs is loaded when it is first used, since PyTorch takes seconds, and Ray is an optional extra.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from roundlog import lazy_face

if TYPE_CHECKING:
    from roundlog.segment_audits.audit import audit_by_segments
    from roundlog.segment_audits.cluster import cluster_workers, connect_cluster
    from roundlog.segment_audits.plan import Reports, SegmentAudit, Sharing, units
    from roundlog.segment_audits.segment import (
        CHECKPOINTS_FILE,
        MAX_LIST_BYTES,
        Listing,
        ListingError,
        Publisher,
        StateSource,
        UnusableState,
        keep_published,
        most_list_bytes,
        read_address_of_job,
        read_listing,
    )
    from roundlog.segment_audits.workers import NoWorkersError, process_workers

__getattr__ = lazy_face(__name__, __file__)
