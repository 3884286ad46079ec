"""The models whose answers were recorded from the real server; see test_recorded_answers.py."""

import shutil
from pathlib import Path

from tests.server.conformance.conftest import ADDSUB, FAULTY, REPEAT
from tests.support.models import ECHO, tensor, write_config, write_ensemble, write_python

PARAMETERS = """
text = json.dumps(json.loads(request.parameters()), sort_keys=True)
return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([text], dtype=object))])
"""
DECOUPLED = """
sender = request.get_response_sender()
word = request.inputs()[0].as_numpy().ravel()[0].decode()
def one(i): return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([str(i)], dtype=object))])
if word == "err":
    sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("custom err", pb_utils.TritonError.NOT_FOUND)))
elif word == "one_err":
    sender.send(one(0))
    sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("custom err", pb_utils.TritonError.NOT_FOUND)))
elif word == "err_one":
    sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("custom err", pb_utils.TritonError.NOT_FOUND)))
    sender.send(one(0))
elif word == "err_final":
    error = pb_utils.TritonError("custom err", pb_utils.TritonError.NOT_FOUND)
    final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
    sender.send(pb_utils.InferenceResponse(error=error), flags=final)
    return None
elif word == "one_final":
    sender.send(one(0), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    return None
elif word == "empty_final":
    sender.send(pb_utils.InferenceResponse([]), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    return None
elif word == "empty_one":
    sender.send(pb_utils.InferenceResponse([]))
    sender.send(one(0))
elif word == "raise":
    raise RuntimeError("boom")
else:
    for i in range(int(word)):
        sender.send(one(i))
sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
return None
"""
CODES = """
word = request.inputs()[0].as_numpy().ravel()[0].decode()
E = pb_utils.TritonError
if word == "plain":
    return pb_utils.InferenceResponse(error=E("custom err"))
if word == "TME":
    raise pb_utils.TritonModelException("model exc")
if word == "both":
    tensor = pb_utils.Tensor("OUTPUT0", np.array(["x"], dtype=object))
    return pb_utils.InferenceResponse([tensor], error=E("custom err"))
if word == "float":
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([1.5], dtype=np.float32))])
if word == "shape":
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([["a","b"]], dtype=object))])
if word == "str":
    return "not a response"
if word == "noout":
    return pb_utils.InferenceResponse([])
return pb_utils.InferenceResponse(error=E("custom err", getattr(E, word)))
"""
OPTIONS = """
count = np.full({}, len(request.inputs()), np.int32)
return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", count)])
"""
FIRST = """
t = pb_utils.get_input_tensor_by_name(request, "INPUT0")
return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", t.as_numpy())])
"""
START = 'control_input [ { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] } ] } ]'
DATATYPES = (
    "BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "FP16", "FP32", "FP64", "STRING",
)  # fmt: skip
# Not loaded when the answers were recorded.
UNLOADED = "extra"


def _pair(datatype: str, *dims: int, extra: str = "") -> str:
    first, last = (tensor(name, datatype, *dims, extra=extra) for name in ("INPUT0", "OUTPUT0"))
    return f"input {first} output {last}"


def write_recorded_models(root: Path) -> list[str]:
    """Write the models; returns the names of those that are to be loaded."""
    two = f"{tensor('INPUT0', 'INT32', 4)}, {tensor('INPUT1', 'INT32', 4)}"
    outputs = f"output [{tensor('OUTPUT0', 'INT32', 4)}, {tensor('OUTPUT1', 'INT32', 4)}]"
    optional = tensor("OPT", "INT32", 4, extra="optional: true")
    write_python(root, "addsub", f"max_batch_size: 4 input [{two}, {optional}] {outputs}", ADDSUB)
    options = f"input [{tensor('A', 'INT32', 1, extra='optional: true')}] output {tensor('OUTPUT0', 'INT32', 1)}"
    for name, size in (("options", 4), ("options_nb", 0)):
        write_python(root, name, f"max_batch_size: {size} {options}", OPTIONS.format("[1, 1]" if size else "[1]"))
    write_python(root, "nobatch", f"input [{two}] {outputs}", ECHO)
    for name, code in (("faulty", FAULTY), ("codes", CODES), ("params", PARAMETERS)):
        write_python(root, name, _pair("STRING", 1), code)
    decoupled = "model_transaction_policy { decoupled: true } "
    write_python(root, "repeat", decoupled + _pair("INT32", 1), REPEAT + "return None")
    write_python(root, "dec", decoupled + _pair("STRING", 1), DECOUPLED)
    for name in ("repeat", "dec"):
        model = root / name / "1" / "model.py"
        calls = "[self.answer(request) for request in requests]"
        model.write_text(model.read_text().replace(f"return {calls}", f"{calls}\n        return None"))
    for datatype in DATATYPES:
        write_python(root, f"id_{datatype.lower()}", _pair(datatype, -1), ECHO)
    batch = "max_batch_size: 4 "
    write_python(root, "id_2d", _pair("FP32", -1, 4), ECHO)
    write_python(root, "id_2v", _pair("FP32", -1, -1), ECHO)
    write_python(root, "id_b", batch + _pair("FP32", -1), ECHO)
    write_python(root, "str_b", batch + _pair("STRING", 1), ECHO)
    write_python(root, "str_16", batch + _pair("STRING", 16), ECHO)
    write_python(root, "str_2", _pair("STRING", 2), ECHO)
    write_python(root, "resh", batch + _pair("FP32", 1, extra="reshape: { shape: [ ] }"), ECHO)
    for name, size, datatype in (("scores", 2, "FP32"), ("scores_nb", 0, "FP32"), ("scores_i", 2, "INT32")):
        labels = 'label_filename: "labels.txt"'
        config = f"input {tensor('INPUT0', datatype, 4)} output {tensor('OUTPUT0', datatype, 4, extra=labels)}"
        write_python(root, name, f"max_batch_size: {size} {config}", ECHO)
        (root / name / "labels.txt").write_text("ant\nbee\ncat\n")
    sequence = f"sequence_batching {{ max_sequence_idle_microseconds: 60000000 {START} }} "
    write_python(root, "seq", batch + sequence + _pair("INT32", 1), FIRST)
    string_in, string_out = f"input {tensor('IN', 'STRING', 1)}", f"output {tensor('OUT', 'STRING', 1)}"
    for name, last in (("chain", "faulty"), ("decchain", "dec")):
        steps = (
            ("id_string", {"INPUT0": "IN"}, {"OUTPUT0": "middle"}),
            (last, {"INPUT0": "middle"}, {"OUTPUT0": "OUT"}),
        )
        write_ensemble(root, name, string_in, string_out, *steps)
    steps = (("dec", {"INPUT0": "IN"}, {"OUTPUT0": "middle"}), ("id_string", {"INPUT0": "middle"}, {"OUTPUT0": "OUT"}))
    write_ensemble(root, "decmid", string_in, string_out, *steps)
    write_config(root, "broken", 'backend: "nonesuch" ' + _pair("STRING", 1), 1)
    write_python(root, "two", "version_policy: { all {} } " + _pair("FP32", -1), ECHO)
    shutil.copytree(root / "two" / "1", root / "two" / "3")
    write_python(
        root,
        "queued",
        "max_batch_size: 1 dynamic_batching { default_queue_policy { default_timeout_microseconds: 100000 } } "
        + _pair("FP32", 1),
        'while not os.path.exists(os.path.join(pb_utils.get_model_dir(), "..", "go")): time.sleep(0.01)\n' + ECHO,
    )
    write_python(
        root,
        "full",
        "max_batch_size: 1 dynamic_batching { default_queue_policy { max_queue_size: 1 } } " + _pair("FP32", -1),
        'while not os.path.exists(os.path.join(pb_utils.get_model_dir(), "..", "go")): time.sleep(0.01)\n' + ECHO,
    )
    names = sorted(folder.name for folder in root.iterdir())
    write_python(root, UNLOADED, _pair("FP32", -1), ECHO)
    return names
