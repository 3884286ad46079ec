"""Progress log of long work, such as the start of a large model."""

import asyncio
import logging
from collections.abc import Awaitable
from time import monotonic
from typing import TypeVar

from conch.base.logs import MODEL_LOGGER

_log = logging.getLogger(MODEL_LOGGER)

REPORT_INTERVAL_S = 10.0

T = TypeVar("T")


async def reported(instance: str, what: str, work: Awaitable[T]) -> T:
    """Await `work`; until it is done, log `what` and the elapsed time every 10 s for `instance`."""
    reports = asyncio.get_running_loop().create_task(_report(instance, what))
    try:
        return await work
    finally:
        reports.cancel()


async def _report(instance: str, what: str) -> None:
    began = monotonic()
    while True:
        await asyncio.sleep(REPORT_INTERVAL_S)
        _log.info("%s after %.0f s", what, monotonic() - began, extra={"instance": instance})
