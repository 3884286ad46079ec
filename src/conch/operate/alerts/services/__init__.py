"""Services that messages are posted to: format, signature, limits, and what their replies mean. Pure."""
