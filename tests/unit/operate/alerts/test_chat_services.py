"""Messages, formats, sizes and the meaning of replies."""

import json
from dataclasses import replace

import pytest

from conch.operate.alerts.chat_services import SERVICES, PostReply, Verdict, retry_after
from conch.operate.alerts.configuration import Secret, Target
from conch.operate.alerts.message import MessageTemplates, compose
from conch.operate.alerts.posting import build_post, number_that_fits
from conch.operate.alerts.webhook import Alert, sample_alert
from tests.support.chat_services import CHECKS, PATHS, SECRET, Received
from tests.unit.operate.alerts.webhooks import alerts

NOW = 1_900_000_000.0
NASTY = [
    '"',
    "\\",
    "<at id=all></at>",
    "<!channel>",
    "<@all>",
    "&amp;",
    "*bold*",
    "\n\n# head",
    "\u2028",
    "日本語",
    "\0",
    "😀",
]


def target_of(kind: str) -> Target:
    signed = SERVICES[kind].sign is not None
    url = Secret(literal=f"http://localhost{PATHS[kind]}")
    return Target("t", SERVICES[kind], url, Secret(literal=SECRET) if signed else None)


def huge(characters: int, labels: int = 30) -> Alert:
    names = {f"label_{number}": "𝕏<" * (characters // 2) for number in range(labels)}
    return replace(
        sample_alert(), labels={"alertname": "Huge" * 100, **names}, annotations={"summary": "<&" * characters}
    )


def check(kind: str, target: Target, some: list[Alert], monkeypatch: pytest.MonkeyPatch) -> Received:
    """Build the request and verify it as the service does."""
    monkeypatch.setattr("tests.support.chat_services.time.time", lambda: NOW)
    post = build_post(target, some, NOW)
    headers = {"content-type": "application/json; charset=utf-8"}
    received = Received(post.url.removeprefix("http://localhost"), headers, post.body)
    CHECKS[kind](received)
    return received


@pytest.mark.parametrize("kind", SERVICES)
@pytest.mark.parametrize("text", [None, "{{ title }}: {{ alerts | length }}", "{{ 'long ' * 20000 }}"])
def test_each_service_accepts_alerts_of_any_content_and_size(
    kind: str, text: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = target_of(kind)
    if text and kind != "generic":
        target = replace(target, templates=MessageTemplates(text=text))
    nasty = [
        replace(sample_alert(), labels={"alertname": nasty, "l": nasty}, annotations={"summary": nasty})
        for nasty in NASTY
    ]
    for some in ([sample_alert(), sample_alert("resolved")], nasty, [huge(10)], [huge(5000)], [huge(100_000, 3)]):
        first = some[: number_that_fits(target, some)]
        check(kind, target, first, monkeypatch)
    bare = Alert("firing", {})
    check(kind, target, [bare], monkeypatch)


@pytest.mark.parametrize("kind", SERVICES)
def test_a_message_has_as_many_alerts_as_fit(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = target_of(kind)
    some = [replace(sample_alert(), annotations={"summary": f"text {number} " * 130}) for number in range(20)]
    number = number_that_fits(target, some)
    assert number == {"wecom": 2, "slack": 20, "generic": 20}.get(kind, 10)
    body = check(kind, target, some[:number], monkeypatch).body.decode()
    assert all(f"text {index} " in body for index in range(number))


def test_values_cannot_mention_people_or_break_the_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    some = [replace(sample_alert(), annotations={"summary": "<at id=all></at> <@all> <!channel>"})]
    for kind, tag in (("feishu", "<at "), ("wecom", "<@"), ("slack", "<!")):
        assert tag not in check(kind, target_of(kind), some, monkeypatch).body.decode()


def test_a_title_states_numbers_names_and_common_labels() -> None:
    some = [*alerts("A", "B"), *alerts("A", status="resolved")]
    assert compose(some, MessageTemplates()).title == "[FIRING:2, RESOLVED:1] A, B (severity=critical)"


def test_a_template_of_a_json_body_escapes_values(monkeypatch: pytest.MonkeyPatch) -> None:
    body = '{"all": {{ alerts | map(attribute="labels.alertname") | list | tojson }}}'
    some = [replace(sample_alert(), labels={"alertname": nasty}) for nasty in NASTY]
    received = check("generic", replace(target_of("generic"), body=body), some, monkeypatch)
    assert json.loads(received.body)["all"] == NASTY


def test_templates_run_in_a_sandbox() -> None:
    message = compose([sample_alert()], MessageTemplates(text="<{{ alerts.__class__.__mro__ }}>"))
    assert message.text == "<>"


def reply(status: int, document: object = None, **headers: str) -> PostReply:
    body = document.encode() if isinstance(document, str) else json.dumps(document).encode()
    return PostReply(status, {name.replace("_", "-"): value for name, value in headers.items()}, body)


@pytest.mark.parametrize(
    ("kind", "answer", "verdict", "wait"),
    [
        ("dingtalk", reply(200, {"errcode": 0, "errmsg": "ok"}), Verdict.DELIVERED, None),
        ("dingtalk", reply(200, {"errcode": 310000, "errmsg": "sign not match"}), Verdict.TARGET_FAILED, None),
        ("dingtalk", reply(200, {"errcode": 130101, "errmsg": "send too fast"}), Verdict.TARGET_FAILED, 60),
        ("dingtalk", reply(200, {"errcode": 460101, "errmsg": "message too long"}), Verdict.MESSAGE_REJECTED, None),
        ("dingtalk", reply(200, "<html>log in</html>"), Verdict.TARGET_FAILED, None),
        ("dingtalk", reply(200, []), Verdict.TARGET_FAILED, None),
        ("feishu", reply(200, {"StatusCode": 0, "code": 0}), Verdict.DELIVERED, None),
        ("feishu", reply(200, {"code": 19021, "msg": "sign match fail"}), Verdict.TARGET_FAILED, None),
        ("feishu", reply(400, {"code": 11232, "msg": "frequency limited"}), Verdict.TARGET_FAILED, 60),
        ("feishu", reply(400, {"code": 9499, "msg": "Bad Request"}), Verdict.MESSAGE_REJECTED, None),
        ("wecom", reply(200, {"errcode": 0, "errmsg": "ok"}), Verdict.DELIVERED, None),
        ("wecom", reply(200, {"errcode": 45009, "errmsg": "api freq out of limit"}), Verdict.TARGET_FAILED, 60),
        ("wecom", reply(200, {"errcode": 93000, "errmsg": "invalid webhook url"}), Verdict.TARGET_FAILED, None),
        ("wecom", reply(200, {"errcode": 40058, "errmsg": "exceed max length"}), Verdict.MESSAGE_REJECTED, None),
        ("wecom", reply(502, "bad gateway"), Verdict.TARGET_FAILED, None),
        ("slack", reply(200, "ok"), Verdict.DELIVERED, None),
        ("slack", reply(400, "invalid_blocks"), Verdict.MESSAGE_REJECTED, None),
        ("slack", reply(404, "no_service"), Verdict.TARGET_FAILED, None),
        ("slack", reply(429, "rate_limited", retry_after="30"), Verdict.TARGET_FAILED, 30),
        ("generic", reply(204, ""), Verdict.DELIVERED, None),
        ("generic", reply(302, "", location="https://elsewhere"), Verdict.TARGET_FAILED, None),
        ("generic", reply(401, ""), Verdict.TARGET_FAILED, None),
        ("generic", reply(422, ""), Verdict.MESSAGE_REJECTED, None),
        ("generic", reply(503, "", retry_after="7"), Verdict.TARGET_FAILED, 7),
    ],
)
def test_replies(kind: str, answer: PostReply, verdict: Verdict, wait: float | None) -> None:
    outcome = SERVICES[kind].outcome(answer, NOW)
    assert (outcome.verdict, outcome.retry_after_s) == (verdict, wait)
    assert bool(outcome.reason) == (verdict is not Verdict.DELIVERED)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5", 5), ("0", 0), ("99999999", 3600), ("-5", None), ("soon", None), ("", None),
     ("Sat, 17 Mar 2030 17:48:00 GMT", 2080 - 0), ("Thu, 01 Jan 1970 00:00:00 GMT", 0), ("¹", None)],
)  # fmt: skip
def test_retry_after(text: str, seconds: float | None) -> None:
    from datetime import UTC, datetime

    now = datetime(2030, 3, 17, 17, 13, 20, tzinfo=UTC).timestamp()
    assert retry_after(PostReply(503, {"retry-after": text}, b""), now) == seconds
