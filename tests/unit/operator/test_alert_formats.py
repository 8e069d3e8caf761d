"""What each receiver is sent: golden files in both languages, limits, escapes, signatures, and what answers mean.

After a wanted change write the golden files anew: `GOLDEN=write python -m pytest tests/unit/operator/test_alert_formats.py`.
"""

import base64
import hashlib
import hmac
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from ciuic_api.alerting import AlertKind
from ciuic_api.nextsteps import STEPS
from ciuic_api.reasons import Reason
from ciuic_operator.alerts.chinese import CHINESE
from ciuic_operator.alerts.english import ENGLISH
from ciuic_operator.alerts.formats import FORMATS
from ciuic_operator.alerts.formats.layout import plain, shortened
from ciuic_operator.alerts.formats.wire import Answer, Outcome, Outgoing
from ciuic_operator.alerts.model import Message
from ciuic_operator.alerts.secrecy import Secrets, problem, redacted
from ciuic_operator.alerts.words import Words, span, told
from ciuic_operator.receivers import ReceiverType
from unit.operator.alert_samples import FAILED, FRESH, NASTY, NOW, RECOVERED, RESTARTING, WAITING, message

GOLDEN = Path(__file__).parent / "golden" / "alerts"
SECRETS = Secrets("https://chat.example/robot/send?access_token=0123456789abcdef", "SECsecret")
CHATS = (ReceiverType.WECOM, ReceiverType.DINGTALK, ReceiverType.FEISHU, ReceiverType.SLACK)


def compose(kind: ReceiverType, what: Message, secrets: Secrets = SECRETS) -> Outgoing:
    return FORMATS[kind].compose(what, secrets, NOW)


def body(kind: ReceiverType, what: Message) -> Any:
    return json.loads(compose(kind, what).body)


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("kind", ReceiverType)
def test_golden(kind: ReceiverType, language: str) -> None:
    outgoing = compose(kind, message(RESTARTING, RECOVERED, FAILED, FRESH, language=language, dropped=3))
    shown = {"url": outgoing.url, "headers": dict(outgoing.headers), "body": json.loads(outgoing.body)}
    text = json.dumps(shown, indent=1, ensure_ascii=False) + "\n"
    path = GOLDEN / f"{kind}-{language}.json"
    if os.environ.get("GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


class TestLimits:
    @pytest.mark.parametrize("count", [1, 2, 5, 6, 40, 200])
    @pytest.mark.parametrize("language", ["en", "zh"])
    def test_wecom_takes_4096_bytes(self, count: int, language: str) -> None:
        long = replace(RESTARTING, message="内存不足 <@all> " * 400)
        content = body(ReceiverType.WECOM, message(*[long] * count, language=language, dropped=7))["markdown"][
            "content"
        ]
        assert len(content.encode()) <= 4096
        assert content.count("<font") == content.count("</font>") and content.count("`") % 2 == 0
        assert "7" in content.splitlines()[-1], "that some were dropped is said whatever else is cut"
        if count == 1:
            assert len(content.encode()) > 1200, "room is used"
        shown, more = len(re.findall("team/tiny[:：]", content)), re.search(r"(?:and|另有) (\d+)", content)
        assert shown + (int(more[1]) if more else 0) == count and (count == 200) is bool(more)

    @pytest.mark.parametrize("kind", CHATS)
    def test_many_long_ones_stay_below_each_limit(self, kind: ReceiverType) -> None:
        long = replace(RESTARTING, message="Ж" * 2000, job="j" * 50, namespace="n" * 63)
        for count in (1, 5, 200):
            made = compose(kind, message(*[long] * count))
            assert len(made.body) < {ReceiverType.SLACK: 200_000}.get(kind, 20_000)
            if kind is ReceiverType.SLACK:
                blocks = json.loads(made.body)["blocks"]
                assert len(blocks) <= 50 and all(len(block["text"]["text"]) <= 3000 for block in blocks)

    def test_the_gravest_is_never_cut(self) -> None:
        many = message(*[RECOVERED] * 199, replace(FAILED, job="grave"))
        content = body(ReceiverType.WECOM, many)["markdown"]["content"]
        assert content.startswith('<font color="warning">team/grave')
        assert re.search(r"and \d+ more: \d+ Recovered", content)

    @pytest.mark.parametrize("text", ["abc", "内存不足", "a内b存c", "🙂🙂🙂"])
    def test_shortened_text_is_whole_utf8(self, text: str) -> None:
        for limit in range(3, 20):
            cut = shortened(text, limit)
            assert len(cut.encode()) <= limit and (cut == text or cut.endswith("…"))
            assert text.startswith(cut.rstrip("…"))


class TestEscapes:
    def test_wecom_and_dingtalk(self) -> None:
        for kind, field in ((ReceiverType.WECOM, "content"), (ReceiverType.DINGTALK, "text")):
            text = body(kind, message(RESTARTING))["markdown"][field]
            assert "<@" not in text and "<!" not in text and "<at" not in text and "](" not in text
            assert (
                "![" not in text
                and "ˋrmˋ" in text
                and "\n#" not in text.replace("\n#### ", "")
                and "\u202e" not in text
            )
        assert body(ReceiverType.DINGTALK, message(RESTARTING))["at"] == {"isAtAll": False}

    def test_slack(self) -> None:
        (block,) = body(ReceiverType.SLACK, message(RESTARTING))["blocks"]
        assert "&lt;@all&gt; &lt;!channel&gt;" in block["text"]["text"] and "<" not in block["text"]["text"]
        assert "&amp; " in block["text"]["text"] and block["text"]["text"].count("`") == 2

    def test_feishu(self) -> None:
        post = body(ReceiverType.FEISHU, message(RESTARTING))["content"]["post"]["en_us"]
        assert {tag["tag"] for line in post["content"] for tag in line} == {"text"}
        assert not [line for line in post["content"] if "<at" in line[0]["text"] or "\n" in line[0]["text"]]

    def test_a_reason_or_name_is_escaped_as_well(self) -> None:
        odd = replace(RESTARTING, reason="<@all>", node="<@all>", job="<@all>")
        for kind in (ReceiverType.WECOM, ReceiverType.DINGTALK):
            assert "<@" not in compose(kind, message(odd)).body.decode()

    def test_plain_keeps_what_people_search_for(self) -> None:
        assert (
            plain("CUDA error: out of memory (cuda_kernel, step 40): 0x7f!")
            == "CUDA error: out of memory (cuda_kernel, step 40): 0x7f!"
        )

    def test_data_is_not_changed(self) -> None:
        assert body(ReceiverType.WEBHOOK, message(RESTARTING))["alerts"][0]["message"].endswith(NASTY)


class TestSignatures:
    def test_dingtalk(self) -> None:
        query = parse_qs(urlsplit(compose(ReceiverType.DINGTALK, message(FAILED)).url).query)
        (stamp,) = query["timestamp"]
        wanted = hmac.new(b"SECsecret", f"{stamp}\nSECsecret".encode(), hashlib.sha256).digest()
        assert query["sign"] == [base64.b64encode(wanted).decode()] and query["access_token"] == ["0123456789abcdef"]
        assert stamp == str(int(NOW.timestamp()) * 1000)

    def test_feishu(self) -> None:
        made = body(ReceiverType.FEISHU, message(FAILED))
        wanted = hmac.new(f"{made['timestamp']}\nSECsecret".encode(), b"", hashlib.sha256).digest()
        assert made["sign"] == base64.b64encode(wanted).decode() and made["timestamp"] == str(int(NOW.timestamp()))

    def test_webhook(self) -> None:
        made = compose(ReceiverType.WEBHOOK, message(FAILED))
        signed = made.headers["X-DeepSeekJob-Timestamp"].encode() + b"." + made.body
        wanted = hmac.new(b"SECsecret", signed, hashlib.sha256).hexdigest()
        assert made.headers["X-DeepSeekJob-Signature"] == f"sha256={wanted}"

    @pytest.mark.parametrize("kind", ReceiverType)
    def test_without_a_key_nothing_is_signed(self, kind: ReceiverType) -> None:
        made = compose(kind, message(FAILED), Secrets(SECRETS.url))
        assert "sign" not in made.url and not made.headers and b'"sign"' not in made.body


class TestAlertmanager:
    def test_a_recovery_ends_the_alert_of_its_restart(self) -> None:
        first, own, ended, _ = body(ReceiverType.ALERTMANAGER, message(RESTARTING, RECOVERED))
        assert first["labels"] == ended["labels"] and first["labels"]["alertname"] == "DeepSeekJobRestarting"
        assert first["endsAt"] > first["startsAt"] and ended["endsAt"] == ended["startsAt"] == "2026-11-30T12:00:00Z"
        assert own["labels"]["alertname"] == "DeepSeekJobRecovered"

    def test_an_end_has_the_labels_of_its_beginning(self) -> None:
        (begun,) = body(ReceiverType.ALERTMANAGER, message(replace(FRESH, over=False)))
        (ended,) = body(ReceiverType.ALERTMANAGER, message(FRESH))
        assert begun["labels"] == ended["labels"] and ended["startsAt"] == ended["endsAt"]

    @pytest.mark.parametrize("given", ["http://am:9093", "http://am:9093/", "http://am:9093/api/v2/alerts"])
    def test_the_path_may_be_left_out(self, given: str) -> None:
        assert compose(ReceiverType.ALERTMANAGER, message(FAILED), Secrets(given)).url == "http://am:9093/api/v2/alerts"


ANSWERS = [
    (ReceiverType.WECOM, 200, '{"errcode":0,"errmsg":"ok"}', Outcome.SENT),
    (ReceiverType.WECOM, 200, '{"errcode":45009,"errmsg":"api freq out of limit"}', Outcome.LATER),
    (ReceiverType.WECOM, 200, '{"errcode":93000,"errmsg":"invalid webhook url"}', Outcome.REFUSED),
    (ReceiverType.WECOM, 200, "<html>please log in</html>", Outcome.LATER),
    (ReceiverType.WECOM, 200, "", Outcome.LATER),
    (ReceiverType.WECOM, 502, "bad gateway", Outcome.LATER),
    (ReceiverType.DINGTALK, 200, '{"errcode":0}', Outcome.SENT),
    (ReceiverType.DINGTALK, 200, '{"errcode":130101,"errmsg":"send too fast"}', Outcome.LATER),
    (ReceiverType.DINGTALK, 200, '{"errcode":310000,"errmsg":"sign not match"}', Outcome.REFUSED),
    (ReceiverType.FEISHU, 200, '{"code":0,"msg":"success"}', Outcome.SENT),
    (ReceiverType.FEISHU, 200, '{"StatusCode":0,"StatusMessage":"success"}', Outcome.SENT),
    (ReceiverType.FEISHU, 200, '{"code":11232,"msg":"frequency"}', Outcome.LATER),
    (ReceiverType.FEISHU, 400, '{"code":19021,"msg":"sign match fail"}', Outcome.REFUSED),
    (ReceiverType.SLACK, 200, "ok", Outcome.SENT),
    (ReceiverType.SLACK, 429, "rate_limited", Outcome.LATER),
    (ReceiverType.SLACK, 403, "invalid_token", Outcome.REFUSED),
    (ReceiverType.WEBHOOK, 204, "", Outcome.SENT),
    (ReceiverType.WEBHOOK, 302, "", Outcome.REFUSED),
    (ReceiverType.WEBHOOK, 408, "", Outcome.LATER),
    (ReceiverType.ALERTMANAGER, 200, "", Outcome.SENT),
    (ReceiverType.ALERTMANAGER, 400, "start time must be before end time", Outcome.REFUSED),
    (ReceiverType.ALERTMANAGER, 500, "", Outcome.LATER),
]


@pytest.mark.parametrize(("kind", "status", "text", "outcome"), ANSWERS)
def test_what_an_answer_means(kind: ReceiverType, status: int, text: str, outcome: Outcome) -> None:
    verdict = FORMATS[kind].judge(Answer(status=status, body=text))
    assert verdict.outcome is outcome and bool(verdict.why) is (outcome is not Outcome.SENT)


class TestWords:
    @pytest.mark.parametrize("words", [ENGLISH, CHINESE], ids=["en", "zh"])
    def test_every_kind_has_its_words(self, words: Words) -> None:
        assert set(words.headlines) == set(AlertKind)
        for kind in AlertKind:
            text = told(replace(RESTARTING, kind=kind, kept_step=1, seconds=1), words)
            assert "{" not in f"{text.headline}{text.lines}" and text.next is not None

    def test_every_reason_has_its_meaning_in_chinese(self) -> None:
        """Whoever adds a reason writes both."""
        assert set(CHINESE.meanings) == set(Reason)

    def test_what_comes_before_a_command_is_in_chinese_too(self) -> None:
        assert set(CHINESE.first) == {reason for reason, step in STEPS.items() if step.first}

    def test_there_is_always_a_command(self) -> None:
        for alert in (RESTARTING, RECOVERED, FAILED, WAITING, FRESH):
            text = told(alert, ENGLISH)
            assert text.next is not None and text.next[2].startswith("kubectl ") and "-n team" in text.next[2]

    @pytest.mark.parametrize(
        ("seconds", "text"),
        [(0, "0 s"), (59, "59 s"), (60, "1 min"), (185, "3 min 5 s"), (7800, "2 h 10 min"), (90000, "1 d 1 h")],
    )
    def test_spans(self, seconds: int, text: str) -> None:
        assert span(seconds) == text


class TestSecrecy:
    URL = "https://user:pa55word@qyapi.example.com:8443/cgi-bin/hook/s3cr3tpath?key=0a1b2c3d-4e5f%2Bx&v=1#frag-ment"

    def test_nothing_but_the_host_is_left(self) -> None:
        secrets = Secrets(self.URL, "SECk")
        quoted = (
            "key 0a1b2c3d-4e5f+x, 0a1b2c3d-4e5f%2Bx at qyapi.example.com/cgi-bin/hook/s3cr3tpath (SECk), no s3cr3tpath"
        )
        text = f"Cannot connect to {self.URL}: {quoted}"
        clean = redacted(text, secrets)
        for secret in ("0a1b2c3d", "s3cr3tpath", "pa55word", "SECk", "frag-ment"):
            assert secret not in clean
        assert "qyapi.example.com" in clean and "Cannot connect to" in clean
        assert "0a1b2c3d" not in repr(secrets) and "SECk" not in repr(secrets)
        assert "0a1b2c3d" not in repr(compose(ReceiverType.DINGTALK, message(FAILED), secrets))

    @pytest.mark.parametrize(
        "url", ["", "qyapi.example.com/x", "ftp://x/y", "https:///path", "https://a b/c", "https://[x", "https://h:x/p"]
    )
    def test_a_url_that_is_none_is_said_without_it(self, url: str) -> None:
        sentence = problem(Secrets(url))
        assert "Secret" in sentence and (not url or url not in sentence)

    def test_a_good_one(self) -> None:
        assert problem(Secrets(self.URL)) == "" and problem(Secrets("http://127.0.0.1:9093")) == ""
