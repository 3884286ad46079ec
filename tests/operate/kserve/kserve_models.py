"""Build the objects of YAML files with the classes of the `kserve` package. Run by its environment's interpreter.

Arguments: files. A field that the class has not, a value of another type and a missing field are errors. The classes
are generated from KServe's CRDs, those of pods from Kubernetes' OpenAPI document. Prints the kinds that were built.
"""

import re
import sys
from pathlib import Path

import kserve.models
import kubernetes.client.models
import yaml

KINDS = {
    "ClusterServingRuntime": "V1alpha1ClusterServingRuntime",
    "ServingRuntime": "V1alpha1ServingRuntime",
    "InferenceService": "V1beta1InferenceService",
}
# Types that are not classes: numbers with units are text.
LEAVES = {
    "str": str,
    "int": int,
    "bool": bool,
    "float": float,
    "object": object,
    "ResourceQuantity": str,
    "V1beta1MetricQuantity": str,
}
GENERIC = re.compile(r"(?i:(list)\[(.*)\]|dict(?:\(|\[)str, (.*)(?:\)|\]))")


def build(value, kind, place):
    """Return the object of a value. Raises ValueError with the place of what is wrong."""
    generic = GENERIC.fullmatch(kind)
    if generic and generic[1]:
        expect(value, list, place)
        return [build(part, generic[2], f"{place}[{index}]") for index, part in enumerate(value)]
    if generic:
        expect(value, dict, place)
        return {key: build(part, generic[3], f"{place}.{key}") for key, part in value.items()}
    if kind in LEAVES:
        return expect(value, LEAVES[kind], place)
    made = getattr(kserve.models, kind, None) or getattr(kubernetes.client.models, kind)
    expect(value, dict, place)
    names = {json: name for name, json in made.attribute_map.items()}
    for key in value:
        if key not in names:
            raise ValueError(f"{place}: {kind} has no field '{key}'; it has {', '.join(sorted(names))}")
    types = made.openapi_types
    fields = {names[key]: build(part, types[names[key]], f"{place}.{key}") for key, part in value.items()}
    try:
        return made(**fields)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error


def expect(value, kind, place):
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{place}: expected {kind.__name__}, got {value!r}")
    return value


if __name__ == "__main__":
    for path in sys.argv[1:]:
        for document in yaml.safe_load_all(Path(path).read_text()):
            build(document, KINDS[document["kind"]], f"{path}: {document['kind']}")
            print(document["kind"], document["metadata"]["name"])
