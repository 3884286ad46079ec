"""Commands for rules, dashboards and drills of alerts."""
