"""From the queue to an instance: batching, priorities, rate limiter, warm-up."""
