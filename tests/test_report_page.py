"""Charts by hand, the verdict sentence by sentence, the page as a whole."""

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from renshu.errors import DataError
from renshu.jsonl import append_rows
from renshu.report import build_comparison, build_report, tokens_sentence, verdict
from renshu.report.charts import Bar, Series, interval_chart, line_chart, stacked_chart, ticks
from renshu.report.data import RunData, chosen_samples


def arm(name, success, n=100, p=None, low=0.0, high=1.0, unscored=0, reward=0.0):
    shown = {"arm": name, "success": success, "low": low, "high": high, "n": n}
    return shown | {"unscored": unscored, "reward": reward, "p_vs_base": p}


def summary(*arms, computed=10, naive=40):
    return {
        "recipe": "r",
        "seed": 0,
        "seconds": 1.0,
        "stages": [],
        "evaluation": {"flights": {"arms": list(arms)}},
        "tokens": {"computed": computed, "naive": naive},
    }


def test_ticks_by_hand():
    assert ticks(0, 1) == [0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert ticks(0, 0.37) == [0, 0.1, 0.2, 0.3, 0.4]
    assert ticks(1, 40, 8) == [0, 5, 10, 15, 20, 25, 30, 35, 40]
    assert ticks(1, 3, 8, least=1) == [1, 2, 3]
    assert ticks(3, 3) == [3, 3.2, 3.4, 3.6, 3.8, 4]


@settings(max_examples=60, deadline=None)
@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_ticks_cover_and_are_few(low, width):
    found = ticks(low, low + width)
    slack = 1e-6 * width + 1e-9 * abs(low)
    assert found[0] <= low + slack
    assert found[-1] >= low + width - slack
    assert 2 <= len(found) <= 9
    assert found == sorted(set(found))


def test_line_chart_places_points():
    page = line_chart([Series("a", [(0, 0.0), (10, 1.0), (5, math.nan)])], x_label="x", y_label="y")
    # The plot spans 46..628 in x and, downwards, 220..12 in y.
    assert '<polyline class="line c0" points="46.0,220.0 628.0,12.0"/>' in page
    assert "no data" in line_chart([Series("a", [(1, math.nan)])], x_label="x", y_label="y")


def test_interval_chart_places_ends():
    page = interval_chart([Bar("base", 0.5, 0.25, 1.0, "n = 4"), Bar("none", math.nan, 0.0, 1.0)])
    # The axis spans 150..530: 0.25 is at 245, 0.5 at 340.
    assert '<line class="bar c0" x1="245.0" x2="530.0" y1="15" y2="15"/>' in page
    assert 'cx="340.0" cy="15" r="4"' in page
    assert page.count("<circle") == 1  # an unknown value has no dot


def test_stacked_chart_fills_the_height():
    page = stacked_chart([(1, {"a": 0.25, "b": 0.75})], ["a", "b"], x_label="step")
    heights = [float(h) for h in re.findall(r'<rect [^>]*height="([\d.]+)"', page)]
    assert heights == [52.0, 156.0]  # a quarter and three quarters of 208


def test_names_in_charts_are_escaped():
    assert "<b>" not in interval_chart([Bar("<b>", 0.5, 0.0, 1.0, "<b>")])
    assert "<b>" not in line_chart([Series("<b>", [(1, 1)], dots=True)], x_label="<b>", y_label="<b>")
    assert "<b>" not in stacked_chart([(1, {"<b>": 1.0})], ["<b>"], x_label="<b>")


def test_verdict_sentences():
    base = arm("base", 0.2)
    gain = verdict(summary(base, arm("final", 0.9, p=1e-9, low=0.825, high=0.9448)))
    assert gain == (
        "Training paid: the agent solves 90% of 100 held-out flights tasks (95 % interval 82% to 94%), "
        "20% before training (p < 0.001)."
    )
    assert verdict(summary(base, arm("final", 0.25, p=0.4))).startswith("No proven gain: the agent solves 25")
    assert verdict(summary(base, arm("final", 0.05, p=0.01))).startswith(
        "Training did harm: the agent solves"
    )
    assert verdict(summary(arm("final", 0.5))).startswith("The agent solves 50% of 100")
    assert verdict(summary(base, arm("final", None, n=0, unscored=7))) == (
        "No verdict: none of the 7 episodes on flights could be scored."
    )


def test_tokens_sentence():
    said = tokens_sentence(summary(computed=1240, naive=9800))
    assert said == "1,240 of 9,800 tokens were computed (13%); the others were shared prefixes."
    assert tokens_sentence(summary(computed=11, naive=10)).startswith("11 tokens were computed for 10: ")


def test_tool_sequences_are_shares_with_a_rest():
    rows = [
        {"stage": "s", "step": 1, "sequences": {f"t{i}": 8 - i for i in range(8)} | {"rare": 1}},
        {"stage": "s", "step": 2, "sequences": {"t0": 3, "rare": 1}},
        {"stage": "other", "step": 1, "sequences": {"x": 5}},
    ]
    run = RunData("r", {}, rows, [], [], "", {})
    names, columns = run.tool_sequences("s")
    assert names == [*(f"t{i}" for i in range(7)), "other"]
    assert columns[0][1]["t0"] == 8 / 37
    assert columns[0][1]["other"] == pytest.approx(2 / 37)
    assert columns[1] == (2.0, {"t0": 0.75, **{f"t{i}": 0.0 for i in range(1, 7)}, "other": 0.25})


def test_chosen_samples_are_spread():
    samples = [{"n": i} for i in range(11)]
    assert [s["n"] for s in chosen_samples(samples)] == [0, 2, 4, 6, 8, 10]
    assert chosen_samples(samples[:3]) == samples[:3]


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.problems, self.links = [], [], []

    def handle_starttag(self, tag, attrs):
        self.links += [value for key, value in attrs if key in ("src", "href")]
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.problems.append(tag)


def write_run(folder):
    import json

    data = summary(arm("base", 0.2), arm("final", 0.9, p=1e-9))
    data["stages"] = [{"name": "practice", "algorithm": "grpo", "steps": 2, "seconds": 3.0}]
    (folder / "summary.json").write_text(json.dumps(data))
    rows = [
        {"stage": "practice", "step": s, "reward": 0.1 * s, "success": 0.5, "sequences": {"a > b": 2, "": 2}}
        for s in (1, 2)
    ]
    append_rows(folder / "metrics.jsonl", rows)
    sample = {
        "stage": "practice",
        "step": 1,
        "task": "<script>alert(1)</script>",
        "stop": "answered",
        "reward": 1.0,
        "success": True,
        "reason": "",
        "segments": [
            {"sampled": False, "pieces": ["<img src=x>", "練"]},
            {"sampled": True, "pieces": ["<script>", "ok"]},
            {"sampled": False, "pieces": ["result"]},
        ],
    }
    found = [
        {"stage": "", "step": 0, "name": "data", "text": "2 lines of <b>.jsonl were set aside"},
        {"stage": "", "step": 0, "name": "data", "text": "4 of 9 rows were cut at 16 tokens"},
        {"stage": "practice", "step": 1, "name": "sampler_gap", "text": "disagree by 0.1"},
        {"stage": "practice", "step": 2, "name": "sampler_gap", "text": "disagree by 0.2"},
    ]
    append_rows(folder / "findings.jsonl", found)
    (folder / "trajectories").mkdir()
    append_rows(folder / "trajectories/samples.jsonl", [sample])
    return folder


def test_page_is_well_formed_offline_and_escaped(tmp_path):
    page = build_report(write_run(tmp_path)).read_text("utf-8")
    tags = Tags()
    tags.feed(page)
    assert (tags.open, tags.problems) == ([], [])
    assert tags.links == ["data:,"]
    assert "<script" not in page
    assert "<img" not in page
    assert "<b>&lt;script&gt;</b><b>ok</b>result" in page
    assert "prompt of 2 tokens" in page
    assert page.count("<svg") == 3
    for text in ("success in training", "a &gt; b", "no tool", "Training paid"):
        assert text in page
    assert "<li>2 lines of &lt;b&gt;.jsonl were set aside</li>\n<li>4 of 9 rows were cut" in page
    assert "<li>practice, step 1: disagree by 0.1 (and in 1 later steps)</li>" in page


def test_no_report_of_what_is_no_run(tmp_path):
    with pytest.raises(DataError, match=r"holds no run: there is no recipe.resolved.yaml in it"):
        build_report(tmp_path)


RESOLVED = """
seed: 5
env: clerk.py:Clerk
stages:
- {name: warm-up, sft: {epochs: 1}}
- {name: practice, grpo: {steps: 40}}
"""


def write_broken_run(folder):
    """Killed while it wrote the third step of practice, and earlier once while it measured few-shot."""
    (folder / "recipe.resolved.yaml").write_text(RESOLVED)
    row = {"seconds_source": 0.5, "seconds_train": 1.0, "tokens_computed": 10, "tokens_naive": 30}
    rows = [{"stage": "warm-up", "step": 1, "steps": 1, "loss": 2.0, **row}]
    rows += [{"stage": "practice", "step": step, "steps": 40, "reward": 0.5, **row} for step in (1, 2)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "metrics.jsonl").write_text(text + '{"stage": "practice", "st')
    (folder / "evaluation").mkdir()
    for arm, solved in {"base": [0, 0, 1], "few-shot": [0], "warm-up": [1, 1, 1]}.items():
        lines = [
            {"task": f"t/{i}", "success": bool(s), "reward": float(s), "stop": "answered", "messages": []}
            for i, s in enumerate(solved)
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"evaluation/{arm}.jsonl").write_text(text + '{"task": "t/')
    return folder


def test_report_of_a_run_that_was_broken_off(tmp_path):
    run = RunData.read(write_broken_run(tmp_path))
    assert verdict(run.summary) == (
        "This run has not come to its end: it stands at step 2 of 40 of practice."
    )
    assert [(s["name"], s["algorithm"], s["steps"], s["seconds"]) for s in run.summary["stages"]] == [
        ("warm-up", "sft", 1, 1.5),
        ("practice", "grpo", 2, 3.0),
    ]
    arms = run.summary["evaluation"]["Clerk"]["arms"]
    assert [(a["arm"], a["success"], a["n"], a["p_vs_base"]) for a in arms] == [
        ("base", pytest.approx(1 / 3), 3, None),
        ("warm-up", 1.0, 3, 0.5),  # 2 gained: 2 * 1/4
    ]
    assert run.summary["tokens"] == {"computed": 30, "naive": 90}
    page = build_report(tmp_path).read_text("utf-8")
    assert "This run has not come to its end" in page
    assert "Stage practice (grpo): 2 steps in 3 s" in page
    (tmp_path / "failure.json").write_text('{"error": "OSError: <disk> full"}')
    assert "It ended with OSError: &lt;disk&gt; full." in build_report(tmp_path).read_text("utf-8")


def test_report_of_a_run_that_has_only_begun(tmp_path):
    (tmp_path / "recipe.resolved.yaml").write_text(RESOLVED)
    page = build_report(tmp_path).read_text("utf-8")
    assert "it stands before its first step." in page
    (tmp_path / "recipe.resolved.yaml").write_text("seed: 1")
    with pytest.raises(DataError, match=r"recipe.resolved.yaml is damaged: it has no stages"):
        build_report(tmp_path)


COMPARED = {
    "environment": "Clerk",
    "split": "test",
    "max_tokens": 9,
    "seed": 0,
    "tasks": 4,
    "samples": {"k": 2, "temperature": 1.0},
    "verdicts": ["<b> solves"],
    "notes": ["<b> noted"],
    "settings": [{"key": "seed", "values": {"<b>": 1, "other": None}}],
}


def test_comparison_page_is_well_formed_and_escaped(tmp_path):
    pair = {"difference": -0.25, "low": -0.6, "high": 0.1, "gained": 1, "lost": 2, "p": 1.0, "p_holm": 0.04}
    told = {"k": 2, "n": 4, "unscored": 0, "pass_hat": [0.5, 0.25], "pass_at": [0.5, 0.75]}
    told |= {"low": 0.1, "high": 0.7, "distinct": 0.625}
    arms = [
        arm("<b>", 0.75, n=4) | {"against": None, "tokens": None, "seconds": None, "cost_per_1000": None},
        arm("other", 0.5, n=4)
        | {"against": pair, "seconds": 0.25, "cost_per_1000": 1.5, "samples": told}
        | {"tokens": {"prompt": 1234.4, "sampled": 7.25, "sampled_low": 6.0, "sampled_high": 9.0}},
    ]
    page = build_comparison(COMPARED | {"arms": arms}, tmp_path / "c.html").read_text("utf-8")
    tags = Tags()
    tags.feed(page)
    assert (tags.open, tags.problems, tags.links) == ([], [], ["data:,"])
    assert "<b>" not in page
    assert "<td>other</td><td>-25</td>\n<td>-60 to 10</td>" in page
    assert "<td>50.0 %</td><td>25.0 %</td>\n<td>10.0 to 70.0 %</td><td>75.0 %</td>\n<td>62.5 %</td>" in page
    assert "<td>1,234</td><td>7.2</td>\n<td>6.0 to 9.0</td>" in page
    assert "<td>0.25</td><td>$1.50</td>" in page
    assert page.count("<td>–</td><td>–</td><td>–</td>\n<td>–</td><td>–</td></tr>") == 1  # unknown, not 0
    # The axis of differences spans -60 % to 20 % over 150..530: -25 % is at 316.2.
    assert '<circle class="dot c1" cx="316.2" cy="15"' in page  # coloured as in the chart of success


def write_bare_run(folder, **files):
    whole = summary(arm("base", 0.1), arm("final", 0.2))
    for name, text in {"summary.json": json.dumps(whole), **files}.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8", errors="surrogatepass")


def test_any_character_may_stand_in_a_log(tmp_path):
    rows = [{"stage": "practice", "step": 1, "sequences": {"a\u2028b\x85c\x0b\x1c": 1, "\ud800": 1}}]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    write_bare_run(tmp_path, **{"metrics.jsonl": lines.replace("\ud800", "\\ud800")})
    assert RunData.read(tmp_path).metrics == rows
    assert build_report(tmp_path).is_file()


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("summary.json", "{bad", r"summary.json is damaged: Expecting"),
        ("summary.json", "[]", r"summary.json is damaged: expected an object"),
        ("summary.json", "{}", r"summary.json is damaged: it has no seed, stages, evaluation, tokens"),
        ("metrics.jsonl", '{"torn\n', r"metrics.jsonl is damaged at line 1: Unterminated"),
        ("metrics.jsonl", "{}\n", r"metrics.jsonl is damaged at line 1: it has no stage, step"),
        ("findings.jsonl", '{"stage": "a", "step": 1}\n', r"findings.jsonl .* it has no name, text"),
        ("provenance.json", "[]", r"provenance.json is damaged: expected an object"),
    ],
)
def test_a_damaged_run_is_named(tmp_path, name, text, reason):
    write_bare_run(tmp_path, **{name: text})
    with pytest.raises(DataError, match=reason):
        build_report(tmp_path)


def test_report_shows_the_tries_of_each_arm(tmp_path):
    told = {"k": 4, "temperature": 0.5, "n": 9, "unscored": 1, "pass_hat": [0.5, 0.4, 0.3, 0.2]}
    told |= {"pass_at": [0.5, 0.6, 0.7, 0.8], "low": 0.1, "high": 0.4, "distinct": None}
    none = told | {"n": 0, "unscored": 10, "pass_hat": [], "pass_at": []}
    whole = summary(arm("base", 0.5) | {"samples": told}, arm("final", None) | {"samples": none})
    write_bare_run(tmp_path, **{"summary.json": json.dumps(whole)})
    page = build_report(tmp_path).read_text("utf-8")
    assert "<h3>4 tries of every task at temperature 0.5</h3>" in page
    assert "<td>50.0 %</td><td>20.0 %</td>\n<td>10.0 to 40.0 %</td><td>80.0 %</td>\n<td>–</td>" in page
    assert "<td>–</td><td>–</td><td>–</td><td>–</td><td>–</td><td>0</td><td>10</td></tr>" in page


def test_a_page_that_cannot_be_written_leaves_the_earlier_one(tmp_path, monkeypatch):
    write_bare_run(tmp_path)
    page = build_report(tmp_path)
    before = page.read_bytes()

    def full(path, data):
        with path.open("wb") as file:
            file.write(data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        build_report(tmp_path)
    assert page.read_bytes() == before
    assert not list(tmp_path.glob("*.tmp"))
