"""Codecs of the wire protocols: KServe v2 in JSON and protobuf, and the OpenAI API. They do no I/O."""
