"""Scheduling of requests on instances: queue, dynamic batching, rate limiter, warm-up."""
