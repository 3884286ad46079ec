"""Metrics of a model's own, which appear at /metrics beside those of the server."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """MEAN is the mean of IN; how many values went into all of them, and the last one, are metrics."""

    def initialize(self, args):
        """Declare the metrics. They are there, and zero, before the first request."""
        labels = {"model": args["model_name"], "version": args["model_version"]}
        values = pb_utils.MetricFamily(
            name="example_values_total",
            description="Number of values averaged",
            kind=pb_utils.MetricFamily.COUNTER,
        )
        mean = pb_utils.MetricFamily(
            name="example_last_mean",
            description="Mean of the last request",
            kind=pb_utils.MetricFamily.GAUGE,
        )
        # A family must live as long as its metrics.
        self._families = [values, mean]
        self._values, self._mean = values.Metric(labels=labels), mean.Metric(labels=labels)

    def execute(self, requests):
        """One response for each request."""
        return [self._respond(request) for request in requests]

    def _respond(self, request):
        values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        if not len(values):
            return pb_utils.InferenceResponse(
                error=pb_utils.TritonError("IN is empty", pb_utils.TritonError.INVALID_ARG)
            )
        mean = values.mean(dtype=np.float32)
        self._values.increment(len(values))
        self._mean.set(float(mean))
        return pb_utils.InferenceResponse([pb_utils.Tensor("MEAN", mean.reshape(1))])
