"""One attempt to deliver a message."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from conch.operate.alerts.configuration import Target
from conch.operate.alerts.http_post import Unanswered
from conch.operate.alerts.message import TemplateFailed
from conch.operate.alerts.notification import Alert
from conch.operate.alerts.posting import build_post
from conch.operate.alerts.secret import redact
from conch.operate.alerts.services.service import DeliveryOutcome, OutgoingPost, PostReply, Verdict


def attempt(
    target: Target,
    alerts: Sequence[Alert],
    send: Callable[[OutgoingPost], PostReply],
    now: Callable[[], float] = time.time,
) -> DeliveryOutcome:
    """Build, sign and send the message of alerts; return the outcome, whose reason has no secrets."""
    try:
        post = build_post(target, alerts, now())
        outcome = target.service.outcome(send(post), now())
    except TemplateFailed as error:
        outcome = DeliveryOutcome(Verdict.MESSAGE_REJECTED, str(error))
    except Unanswered as error:
        outcome = DeliveryOutcome(Verdict.TARGET_FAILED, str(error))
    except OSError as error:
        outcome = DeliveryOutcome(Verdict.TARGET_FAILED, f"a secret cannot be read: {error}")
    return replace(outcome, reason=redact(outcome.reason, target.secrets())) if outcome.reason else outcome
