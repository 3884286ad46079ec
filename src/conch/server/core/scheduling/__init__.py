"""Scheduling of requests on instances: dynamic batching, rate limiter, warm-up. Decisions: `domain/scheduling`."""
