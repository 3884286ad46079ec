tritonserver --model-repository=/models --metrics-config custom_metrics=/opt/triton/custom_metrics.so
