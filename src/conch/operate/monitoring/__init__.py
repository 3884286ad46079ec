"""Inputs of monitoring systems, as values: PromQL, rules with proofs, dashboards, translations. No I/O, no clock."""
