"""How many requests are in flight at the models of a server, for its log."""

from collections import defaultdict
from contextlib import suppress
from functools import cache

from conch.core.catalog import Catalog
from conch.core.served_model import ServedModel
from conch.errors import ConchError


def requests_in_flight(catalog: Catalog) -> int:
    """Return how many requests models have admitted and not answered; an ensemble's are those at its steps."""
    users: dict[ServedModel, list[ServedModel]] = defaultdict(list)
    for served in catalog:
        for step in served.config.ensemble_steps:
            with suppress(ConchError):  # it has been unloaded
                users[catalog.of_step(served.id.namespace, step)].append(served)

    @cache
    def admitted(served: ServedModel) -> int:
        # A request of an ensemble holds the models of all its steps, whether these have begun or not.
        return served.in_flight - sum(admitted(ensemble) for ensemble in users[served])

    return sum(max(admitted(served), 0) for served in catalog if not served.config.is_ensemble)
