"""Recorded loads to replay: times, Mooncake, BurstGPT, and the request log of Conch."""
