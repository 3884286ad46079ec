"""All services by the `type` of a target."""

from collections.abc import Mapping

from conch.alerts.services.dingtalk import DINGTALK
from conch.alerts.services.feishu import FEISHU
from conch.alerts.services.generic import GENERIC
from conch.alerts.services.service import TargetService
from conch.alerts.services.slack import SLACK
from conch.alerts.services.wecom import WECOM

SERVICES: Mapping[str, TargetService] = {service.name: service for service in (DINGTALK, FEISHU, WECOM, SLACK, GENERIC)}
