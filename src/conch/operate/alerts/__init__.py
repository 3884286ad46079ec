"""Webhook receiver: queues alerts of Alertmanager durably and delivers them to chat services and URLs."""
