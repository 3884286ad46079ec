"""The wire protocols: HTTP/1.1, HTTP/2, KServe v2 and the OpenAI API, and the connections that carry them."""
