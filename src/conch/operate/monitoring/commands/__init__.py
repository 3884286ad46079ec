"""Commands that observe servers: alerts, audit logs, dashboards, exporters, traces, tunnels."""
