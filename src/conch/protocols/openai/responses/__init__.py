"""The Responses API: requests, input items, and the events and documents of answers."""
