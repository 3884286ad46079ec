"""Any body that clients may send is decoded or refused with a reason."""

import json
import struct
from math import prod

from hypothesis import given
from hypothesis import strategies as st

from conch.base.errors import ConchError
from conch.domain.request import InferResponse
from conch.domain.tensor import DATATYPES, Tensor
from conch.protocols.v2_json.inference import OutputOptions, decode_request, encode_response, read_header_length

numbers = st.integers() | st.floats() | st.sampled_from([2**31, 2**63, 2**64, 10**400])
scalars = st.none() | st.booleans() | numbers | st.text()
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)


def often(right, wrong=values):
    """Mostly something plausible, so that what lies behind the first check is reached."""
    return st.one_of(right, right, right, wrong)


def member(key, value):
    return st.fixed_dictionaries({key: often(value)})


tensors = often(
    st.fixed_dictionaries(
        {},
        optional={
            "name": often(st.sampled_from(["A", "B"])),
            "datatype": often(st.sampled_from(sorted(DATATYPES))),
            "shape": often(st.lists(st.integers(0, 3), max_size=3)),
            "data": often(st.lists(scalars, max_size=9)),
            "parameters": often(member("binary_data_size", st.integers(0, 12))),
        },
    )
)
outputs = often(
    st.fixed_dictionaries(
        {"name": often(st.just("A"))},
        optional={
            "parameters": often(
                st.fixed_dictionaries(
                    {}, optional={"binary_data": often(st.booleans()), "classification": often(st.integers(0, 3))}
                )
            )
        },
    )
)
documents = often(
    st.fixed_dictionaries(
        {"inputs": often(st.lists(tensors, max_size=3))},
        optional={
            "id": often(st.text()),
            "outputs": often(st.lists(outputs, max_size=3)),
            "parameters": often(
                st.dictionaries(
                    st.sampled_from(["sequence_id", "sequence_start", "priority", "timeout", "triton_x", "other"]),
                    scalars,
                )
            ),
        },
    )
)


@given(st.binary(), st.none() | st.binary(max_size=4), st.integers(0, 40))
def test_any_bytes(body, header, length):
    try:
        header_length = read_header_length(header if header is None else b"%d" % length, len(body))
        decode_request("m", None, body, header_length)
    except ConchError:
        pass


@given(documents, st.binary(max_size=16), st.booleans())
def test_any_json(document, tail, split):
    body = json.dumps(document).encode()
    try:
        request, options = decode_request("m", None, body + tail, len(body) if split else None)
    except ConchError as error:
        error.message.encode()  # can be sent
        return
    for tensor in request.inputs:
        assert all(type(dim) is int and dim >= 0 for dim in tensor.shape)
    assert isinstance(options, OutputOptions)


@given(st.text().map(str.encode) | st.binary(), st.binary())
def test_damaged_json(garbage, more):
    body = b'{"inputs":[{"name":"A","datatype":"BYTES","shape":[1],"data":["' + garbage + b'"]}]' + more
    try:
        decode_request("m", None, body, None)
    except ConchError as error:
        error.message.encode()


@given(
    st.lists(st.floats(width=32)),
    st.lists(st.integers(-(2**63), 2**63 - 1)),
    st.lists(st.floats()),
    st.lists(st.binary()),
)
def test_json_round_trip(singles, integers, doubles, strings):
    tensors = [
        Tensor("S", "FP32", (len(singles),), struct.pack(f"<{len(singles)}f", *singles)),
        Tensor("I", "INT64", (len(integers),), struct.pack(f"<{len(integers)}q", *integers)),
        Tensor("D", "FP64", (len(doubles),), struct.pack(f"<{len(doubles)}d", *doubles)),
        Tensor("B", "BYTES", (len(strings),), b"".join(struct.pack("<I", len(s)) + s for s in strings)),
    ]
    response = InferResponse("m", 1, tensors)
    header, binary = encode_response(response, OutputOptions(), lambda tensor, count: tensor)
    request, _ = decode_request("m", None, header.replace(b'"outputs"', b'"inputs"', 1), None)
    assert binary == []
    for sent, received in zip(tensors, request.inputs, strict=True):
        assert (sent.name, sent.datatype, sent.shape) == (received.name, received.datatype, received.shape)
        assert len(received.data) == len(sent.data)
        if sent.datatype in ("FP32", "FP64"):
            code = "f" if sent.datatype == "FP32" else "d"
            count = prod(sent.shape)
            # NaN comes back as NaN, but its payload does not travel.
            assert str(struct.unpack(f"<{count}{code}", sent.data)) == str(
                struct.unpack(f"<{count}{code}", received.data)
            )
        else:
            assert bytes(received.data) == sent.data
