"""What runs beside servers: monitoring, alerts, deployment, scaling, exporters, tunnels."""
