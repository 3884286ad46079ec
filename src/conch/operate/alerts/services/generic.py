"""Any URL: a JSON body by template, by default Alertmanager's own payload. Any status 2xx is success."""

import json
from typing import Any

from conch.operate.alerts.message import Message, TemplateFailed, render
from conch.operate.alerts.services.service import TargetService, http_outcome


def _document(message: Message) -> dict[str, Any]:
    variables = message.variables
    return {
        "version": "4",
        "receiver": variables["receiver"],
        "status": variables["status"],
        "externalURL": variables["externalURL"],
        "commonLabels": variables["commonLabels"],
        "commonAnnotations": variables["commonAnnotations"],
        "title": message.title,
        "alerts": variables["alerts"],
    }


def body_of_template(source: str, message: Message) -> Any:
    """Return the JSON value that a template renders. Raises TemplateFailed."""
    text = render(source, message.variables)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        remedy = "write values as {{ value | tojson }}, which adds the quotation marks"
        raise TemplateFailed(f"the body is not valid JSON ({error}); {remedy}") from None


GENERIC = TargetService("generic", _document, http_outcome, max_size=1_000_000, burst=100, per_minute=6000)
