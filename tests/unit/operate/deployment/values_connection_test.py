"""Values of the pod of `helm test`."""

CASES = {
    "no connection test": {"connectionTest": {"enabled": False}},
    "a connection test where metadata need a key": {"secrets": {"apiKeys": {"secretName": "keys"}}},
}
