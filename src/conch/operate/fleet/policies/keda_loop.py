"""KEDA on a ScaledObject: the queries of its triggers run against the fleet's Prometheus, with shortened ranges."""

import asyncio

from conch.base.errors import ConfigError, Unavailable
from conch.operate.fleet.policies.scaling_loop import LoopContext, ScalingLoop
from conch.operate.scaling.autoscaler import MetricReading, ScalingDecision
from conch.operate.scaling.keda.controller import KedaController
from conch.operate.scaling.keda.spec import ScaledObjectSpec, Trigger


def check_scaled_object(spec: ScaledObjectSpec) -> None:
    """Raise ConfigError unless the fleet has all triggers of a ScaledObject."""
    for each in spec.triggers:
        if not each.query:
            raise ConfigError(
                f"a trigger of type {each.metric.name} is not supported by conch fleet, whose replicas are processes "
                "without resource metrics; use triggers of the type prometheus"
            )


class KedaLoop(ScalingLoop):
    """One ScaledObject, and the HorizontalPodAutoscaler that KEDA creates for it."""

    def __init__(self, spec: ScaledObjectSpec, context: LoopContext) -> None:
        super().__init__(spec.hpa(), context)
        self._spec = spec
        self._keda = KedaController(spec, created_s=context.clock.now_s)
        self._next_poll_s = context.clock.now_s

    async def decide(self) -> ScalingDecision:
        replicas, now_s = self.context.replicas, self.context.clock.now_s
        readings = await asyncio.gather(*(self._read(each) for each in self._spec.triggers))
        if now_s >= self._next_poll_s:
            self._next_poll_s = now_s + self._spec.polling_interval_s
            polled = self._keda.poll(now_s, replicas.desired, readings)
            if polled.desired != replicas.desired or replicas.desired == 0:
                return polled
        return self._keda.sync(now_s, replicas.desired, replicas.pods, readings)

    async def _read(self, trigger: Trigger) -> MetricReading:
        query = self.context.timing.shortened_query(trigger.query)
        try:
            rows = await self.context.prometheus.query(query)
        except Unavailable as error:
            return MetricReading(error=f"unable to get external metric {trigger.metric.name}: {error}")
        if len(rows) > 1:
            message = f"unable to get external metric {trigger.metric.name}: the query returned {len(rows)} series"
            return MetricReading(error=message)
        return MetricReading(value=rows[0].value if rows else None)
