"""Messages from the caches equal those without a cache."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from conch.base.errors import InvalidRequest
from conch.domain.request import InferResponse, Timeline
from conch.domain.tensor import Tensor
from conch.protocols.v2_proto import request_cache
from conch.protocols.v2_proto.inference import encode_infer_response, read_infer_request, streamed
from conch.protocols.v2_proto.request_cache import ProtoRequestCache, ProtoResponseCache


@st.composite
def requests(draw) -> bytes:
    """Few names and sizes, so that much is alike; parts in any order, some of them twice."""
    message = service_pb2.ModelInferRequest(
        model_name=draw(st.sampled_from(["m", "n"])),
        model_version=draw(st.sampled_from(["", "1", "x"])),
        id=draw(st.sampled_from(["", "", "1"])),
    )
    contents = service_pb2.ModelInferRequest()
    for name in draw(st.sampled_from([[], ["A"], ["A", "B"]])):
        message.inputs.add(name=name, datatype=draw(st.sampled_from(["INT8", "UINT8"])), shape=[1, 2])
        contents.raw_input_contents.append(draw(st.sampled_from([b"ab", b"cd", b"\x3a\x02", b"", bytes(5000)])))
    if draw(st.booleans()):
        message.outputs.add(name="O").parameters["classification"].int64_param = 1
    for key, value in draw(
        st.dictionaries(st.sampled_from(["p", "sequence_id"]), st.integers(0, 2), max_size=2)
    ).items():
        message.parameters[key].int64_param = value
    pieces = [message.SerializeToString(), contents.SerializeToString(), draw(st.sampled_from([b"", b"\x0a\x01m"]))]
    return b"".join(draw(st.permutations(pieces)))


def meaning(message) -> object:
    try:
        version = message.version()
        request, options = message.decode(Timeline())
    except InvalidRequest as error:
        return error.message
    tensors = [(tensor.name, tensor.datatype, tensor.shape, bytes(tensor.data)) for tensor in request.inputs]
    fields = [request.model_name, request.version, request.id, request.outputs, request.parameters]
    return [version, message.model_name, message.id, tensors, *fields, request.correlation_id, options]


@settings(max_examples=50)
@given(st.lists(requests(), min_size=1, max_size=12))
def test_a_cached_request_equals_a_parsed_one(sent):
    cache = ProtoRequestCache()
    for data in [*sent, *sent]:
        assert meaning(cache.read(data)) == meaning(read_infer_request(data))


def test_requests_of_one_entry_share_no_mutable_values():
    cache = ProtoRequestCache()
    message = service_pb2.ModelInferRequest(model_name="m", raw_input_contents=[b"a"])
    message.inputs.add(name="A", datatype="INT8", shape=[1])
    message.parameters["p"].int64_param = 1
    data = message.SerializeToString()
    for _ in range(3):
        request, _ = cache.read(data).decode(Timeline())
        assert request.parameters == {"p": 1}
        request.parameters["header"] = "x"
        request.inputs.clear()


def test_the_cache_is_bounded():
    cache = ProtoRequestCache()
    for size in range(2000):
        message = service_pb2.ModelInferRequest(model_name="m" * (size % 7), raw_input_contents=[bytes(size)])
        message.inputs.add(name="A", datatype="INT8", shape=[size])
        cache.read(message.SerializeToString()).decode(Timeline())
    assert sum(map(len, cache._entries.values())) <= request_cache._MAX_ENTRIES_PER_SIZE * request_cache._MAX_SIZES


@st.composite
def responses(draw) -> InferResponse:
    tensors = [
        Tensor(name, "UINT8", (size,), draw(st.sampled_from([bytes(size), b"x" * size])))
        for name, size in draw(st.lists(st.tuples(st.sampled_from("AB"), st.sampled_from([0, 1, 300])), max_size=3))
    ]
    parameters = draw(st.sampled_from([{}, {}, {"p": 1}]))
    return InferResponse(
        draw(st.sampled_from("mn")), 1, tensors, id=draw(st.sampled_from(["", "ä" * 70])), parameters=parameters
    )


@settings(max_examples=50)
@given(st.lists(st.tuples(responses(), st.sampled_from([None, True, False])), min_size=1, max_size=12))
def test_a_cached_response_equals_an_encoded_one(sent):
    cache = ProtoResponseCache()
    for response, final in [*sent, *sent]:
        if final is None:
            kind, got = service_pb2.ModelInferResponse, cache.encode(response)
            expected = encode_infer_response(response)
        else:
            kind, got = service_pb2.ModelStreamInferResponse, cache.encode_streamed(response, final)
            expected = streamed(encode_infer_response(response, {"triton_final_response": final}))
        assert kind.FromString(b"".join(got)) == kind.FromString(b"".join(expected))


def test_malformed_messages_are_refused():
    with pytest.raises(InvalidRequest, match="failed to parse the request"):
        ProtoRequestCache().read(b"\x0a\xff")
