"""KEDA: ScaledObjects, polling, activation, fallback, scaling modifiers, and the HPA that KEDA creates. Pure."""
