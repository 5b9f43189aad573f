"""What the load benches make of what they saw."""

from __future__ import annotations

from bench.load.report import summary, tables
from bench.load.soak import SLACK, growth

OK = {"way": "api", "outcome": "ok", "first": 1.0, "whole": 2.0}
REFUSED = {"way": "api", "outcome": "429", "first": None, "whole": None}


def test_only_whole_replies_have_times_and_all_outcomes_are_counted() -> None:
    slow = {**OK, "first": 9.0, "whole": 10.0}
    cut = {**OK, "outcome": "interrupted", "first": 100.0}
    found = summary([OK, OK, slow, REFUSED, cut])
    assert found["outcomes"] == {"ok": 3, "429": 1, "interrupted": 1}
    assert found["first"] == [1.0, 9.0, 9.0]
    assert summary([REFUSED])["first"] is None


def test_what_was_not_measured_is_a_dash_and_no_ratio() -> None:
    nothing, something = summary([REFUSED]), summary([OK])
    twice = summary([{**OK, "first": 2.0}])
    run = {
        "busy": {"users": 1, "seconds": 1.0, "others": {}}
        | dict.fromkeys(("socket", "api", "all"), nothing),
        "pairs": [
            {"idle": something, "training": twice, "job": "training"},
            {"idle": something, "training": nothing, "job": "gating"},
        ],
        "memory": [{"at": 0, "web": {"rss": 1.0, "pss": 1.0, "cpu": 0.0}}],
        "costs": {},
        "load": [1.0, 2.0],
    }
    text = tables(run)
    assert "| api | 1 | – | – | 429 1 |" in text
    assert "Training against idle: first 2.00 – **2.00** – 2.00; whole 1.00" in text


def test_growth_beyond_its_share_and_slack_is_told() -> None:
    def samples(last: float) -> list[dict[str, float]]:
        figures = [1.0] * 4 + [100.0] * 12 + [last] * 4  # the first are not there yet
        return [dict.fromkeys(SLACK, each) | {"at": 10.0 * n} for n, each in enumerate(figures)]

    assert all(each["ok"] for each in growth(samples(110.0), 0.1).values())
    grown = growth(samples(130.0), 0.1)
    assert not any(each["ok"] for each in grown.values())
    assert (grown["web_pss"]["early"], grown["web_pss"]["late"]) == (100, 130)
