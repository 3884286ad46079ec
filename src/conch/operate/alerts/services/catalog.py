"""All services by the `type` of a target."""

from collections.abc import Mapping

from conch.operate.alerts.services.dingtalk import DINGTALK
from conch.operate.alerts.services.feishu import FEISHU
from conch.operate.alerts.services.generic import GENERIC
from conch.operate.alerts.services.service import TargetService
from conch.operate.alerts.services.slack import SLACK
from conch.operate.alerts.services.wecom import WECOM

SERVICES: Mapping[str, TargetService] = {service.name: service for service in (DINGTALK, FEISHU, WECOM, SLACK, GENERIC)}
