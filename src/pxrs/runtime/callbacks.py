"""The consumer's own callbacks: a part of its set-up. If one raises, the consumer ends."""

from __future__ import annotations

import logging

from pxrs.errors import HandlerFailed
from pxrs.model import Grant
from pxrs.runtime.gist import error_text
from pxrs.runtime.job import Job

logger = logging.getLogger("pxrs.consumer")


def tell_assigned(job: Job, grant: Grant, position: int) -> None:
    """A partition begins here."""
    try:
        if job.assigned:
            job.assigned(grant.partition, position, grant.epoch)
    except Exception as error:
        raise HandlerFailed(f"assigned callback, partition {grant.partition}: {error_text(error)}") from error


def tell_revoked(job: Job, grant: Grant, position: int | None) -> None:
    """A partition goes. A callback that fails must not keep it from being handed over."""
    try:
        if job.revoked:
            job.revoked(grant.partition, position, grant.epoch)
    except Exception as error:
        logger.exception("revoked callback failed for partition %d", grant.partition)
        job.fail(HandlerFailed(f"revoked callback, partition {grant.partition}: {error_text(error)}"))
