"""The syntax of --set and --set-string, as Helm documents it."""

from typing import Any

import pytest

from conch.base.errors import ConfigError
from conch.operate.deployment.values.read import merge, read_values
from conch.operate.deployment.values.set_flags import apply_set

ASSIGNMENTS: list[tuple[str, Any]] = [
    ("name=value", {"name": "value"}),
    ("a=b,c=d", {"a": "b", "c": "d"}),
    ("outer.inner=value", {"outer": {"inner": "value"}}),
    ("name={a,b,c}", {"name": ["a", "b", "c"]}),
    ("name={}", {"name": []}),
    ("name=[],a=null", {"name": [], "a": None}),
    ("servers[0].port=80,servers[0].host=example", {"servers": [{"port": 80, "host": "example"}]}),
    ("a[0]=x,a[2]=y", {"a": ["x", None, "y"]}),
    ("a[0][1]=x", {"a": [[None, "x"]]}),
    (r"name=value1\,value2", {"name": "value1,value2"}),
    (r"nodeSelector.kubernetes\.io/role=master", {"nodeSelector": {"kubernetes.io/role": "master"}}),
    (
        "a=True,b=false,c=null,d=12,e=-3,f=012,g=1.5",
        {"a": True, "b": False, "c": None, "d": 12, "e": -3, "f": "012", "g": "1.5"},
    ),
    ("a=", {"a": ""}),
    ("a=b=c", {"a": "b=c"}),
    ("triton.image.name=<your custom image>", {"triton": {"image": {"name": "<your custom image>"}}}),
]


@pytest.mark.parametrize(("text", "expected"), ASSIGNMENTS, ids=[text for text, _ in ASSIGNMENTS])
def test_assignments(text: str, expected: Any) -> None:
    values: dict[str, Any] = {}
    apply_set(values, text)
    assert values == expected


def test_texts_stay_texts() -> None:
    values: dict[str, Any] = {}
    apply_set(values, "image.tag=24,a={1,true}", strings=True)
    assert values == {"image": {"tag": "24"}, "a": ["1", "true"]}


def test_later_assignments_change_earlier_ones() -> None:
    values: dict[str, Any] = {"image": {"tag": "1"}, "gpu": ["a"]}
    apply_set(values, "image.digest=sha256:1,gpu[1]=b")
    assert values == {"image": {"tag": "1", "digest": "sha256:1"}, "gpu": ["a", "b"]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name", "'name' is not a valid assignment; write KEY=VALUE"),
        ("=1", "'=1' is not a valid assignment"),
        ("a..b=1", "'a..b' is not a valid key"),
        ("a[x]=1", r"'a\[x\]' is not a valid key"),
        ("a[99999]=1", "an index is over 65536"),
        ("a=1,a.b=2", "the value of 'a' is not a mapping"),
        ("a.b=1,a[0]=2", "the value of 'a' is not a list"),
    ],
)
def test_invalid_assignments(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        apply_set({}, text)


def test_later_documents_win_and_null_removes_a_default() -> None:
    merged = merge([{"a": {"b": 1, "c": 2}, "d": [1]}, {"a": {"b": 3}, "d": [2], "e": None}])
    assert merged == {"a": {"b": 3, "c": 2}, "d": [2], "e": None}
    values = read_values({"podSecurityContext": {"runAsUser": None}})
    assert "runAsUser" not in values.pod_security_context
    assert values.pod_security_context["runAsNonRoot"] is True
    with pytest.raises(ConfigError, match=r"values: image\.tag: null is not valid; leave the key out for the default"):
        read_values({"image": {"tag": None}})
