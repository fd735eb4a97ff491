"""Arms side by side, tries of the same task, tokens and cost: by hand and by brute force."""

import itertools
import json
import math
from dataclasses import replace

import pytest

from renshu.envs import Interaction
from renshu.errors import ConfigError, DataError
from renshu.evaluation import (
    Outcome,
    Prices,
    Result,
    SampledResult,
    Tokens,
    Tries,
    compare,
    evaluate,
    mcnemar,
    paired_rates,
    read_outcomes,
    read_result,
    repeated,
    samples_log,
    tokens_a_task,
    verdicts,
    wilson,
)
from renshu.evaluation.records import final_answer, prompt_tokens
from renshu.evaluation.words import cost, p_value, points, rate, spread
from renshu.jsonl import append_rows, read_rows
from renshu.types import Message, Scored, Segment, Stop, Task, Trajectory
from rollout_kit import CHAT, Shelf, call_text, engine, ids_of


def result(arm, successes, tokens=None, seconds=None):
    outcomes = [
        Outcome(f"t/{i}", success, None if success is None else float(success), tokens)
        for i, success in enumerate(successes)
    ]
    return Result(arm, tuple(outcomes), seconds=seconds)


def tried(*rows, k):
    """A sampled result of one task a row of answers: "y" solves, "?" is unscored, "-" comes to no answer."""
    known = {"?": None, "-": False, "y": True}
    outcomes = [
        tuple(
            Outcome(f"t/{i}", known.get(a, False), None, answer=None if a == "-" else a.lower()) for a in row
        )
        for i, row in enumerate(rows)
    ]
    return SampledResult(Tries(k=k), tuple(outcomes))


def test_pass_hat_and_pass_at_by_brute_force():
    rows = ["yyyy", "yynn", "nnnn", "ynnn", "yyyn"]
    summary = tried(*rows, k=4).summary()
    for j in range(1, 5):
        subsets = [list(itertools.combinations(row, j)) for row in rows]
        every = [sum(set(s) == {"y"} for s in row) / len(row) for row in subsets]
        some = [sum("y" in s for s in row) / len(row) for row in subsets]
        assert summary["pass_hat"][j - 1] == pytest.approx(sum(every) / 5)
        assert summary["pass_at"][j - 1] == pytest.approx(sum(some) / 5)
    assert (summary["low"], summary["high"]) == (wilson(1, 5).low, wilson(1, 5).high)
    assert (summary["n"], summary["unscored"], summary["k"], summary["temperature"]) == (5, 0, 4, 1.0)


def test_a_task_with_an_unscored_try_is_left_out_not_counted_as_failed():
    summary = tried("yy", "y?", k=2).summary()
    assert (summary["pass_hat"], summary["n"], summary["unscored"]) == ([1.0, 1.0], 1, 1)
    nothing = tried("?y", k=2).summary()
    assert (nothing["pass_hat"], nothing["pass_at"], nothing["n"]) == ([], [], 0)


def test_distinct_answers_are_shares_of_the_answers_given():
    # 2 of 4 differ, 1 of 2 (two came to no answer), none at all: (1/2 + 1/2) / 2.
    assert tried("aaab", "cc--", "----", k=4).summary()["distinct"] == 0.5
    assert tried("--", k=2).summary()["distinct"] is None


def test_repeated_tries_of_one_task():
    (row,) = tried("yyyyyyn--?", k=10).outcomes
    told = repeated(row)
    assert (told["success"], told["n"], told["unscored"]) == (6 / 9, 9, 1)
    assert (told["low"], told["high"]) == (wilson(6, 9).low, wilson(6, 9).high)
    assert (told["distinct"], told["unanswered"], told["commonest"]) == (3, 2, "y")
    assert told["share"] == 6 / 8
    none = repeated(tried("--", k=2).outcomes[0])
    assert (none["commonest"], none["share"], none["distinct"]) == (None, None, 0)


def test_every_arm_is_tested_against_the_first():
    base = [False] * 30 + [True] * 10
    better, same = [True] * 14 + [False] * 16 + [True] * 9 + [False], [*base[:39], None]
    arms = compare([result("base", base), result("a", better), result("b", same)])
    assert [arm["arm"] for arm in arms] == ["base", "a", "b"]
    assert arms[0]["against"] is None
    pair = arms[1]["against"]
    assert (pair["arm"], pair["n"], pair["gained"], pair["lost"]) == ("base", 40, 14, 1)
    assert pair["difference"] == pytest.approx(13 / 40)
    assert pair["p"] == pytest.approx(2 * (1 + 15) / 2**15)
    assert pair["p_holm"] == pytest.approx(2 * pair["p"])  # the lesser of two
    assert (pair["low"], pair["high"]) == (paired_rates(base, better).low, paired_rates(base, better).high)
    assert pair["reward_difference"] == pytest.approx(13 / 40)
    assert (arms[2]["against"]["n"], arms[2]["against"]["p_holm"], arms[2]["unscored"]) == (39, 1.0, 1)
    assert "p_vs_base" not in arms[1]


def test_arms_of_other_tasks_are_refused():
    with pytest.raises(ConfigError, match="a and b were not measured on the same tasks"):
        compare([result("a", [True]), result("b", [True, True])])


def test_verdicts_say_no_more_than_their_intervals():
    base = [False] * 80 + [True] * 20
    final, little = [True] * 30 + base[30:], [True, True, *base[2:]]
    told = verdicts(
        compare([result("base", base), result("few-shot", little), result("final", [*final[:99], None])])
    )
    interval = paired_rates(base, [*final[:99], None])
    assert told == [
        f"final solves 30.3 points more than base (95 % interval {points(interval.low)} to "
        f"{points(interval.high)}; p < 0.001, corrected for several arms; tasks unscored in one of them: 1).",
        "few-shot alone: no proven difference from base, 2 points (95 % interval "
        f"{points(paired_rates(base, little).low)} to {points(paired_rates(base, little).high)}; p = 0.500).",
    ]
    (worse,) = verdicts(compare([result("base", final), result("final", base)]))
    assert worse.startswith("final solves 30 points fewer than base (95 % interval -")
    (none,) = verdicts(compare([result("base", [None]), result("final", [True])]))
    assert none == "final: no verdict, since no task was scored both in it and in base."
    (alone,) = verdicts(compare([result("base", [True, False])]))
    assert alone == f"base solves 50% of 2 tasks (95 % interval {wilson(1, 2).low:.0%} to 91%)."
    assert verdicts(compare([result("base", [None])])) == ["base: no task could be scored."]


def test_final_and_the_stage_of_the_same_weights_share_one_sentence():
    base, trained = [False] * 10, [True] * 10
    arms = compare([result("base", base), result("practice", trained), result("final", trained)])
    (told,) = verdicts(arms, {"final": "practice"})
    assert told.startswith("final (same weights as practice) solves 100 points more than base (95 % interval")
    assert told.endswith("; p = 0.004, corrected for several arms).")  # 2 tests of 2 / 2**10 each
    turned = compare([result("final", trained), result("practice", base)])
    assert len(verdicts(turned, {"final": "practice"})) == 1  # the arm that is asked about is never left out
    assert verdicts(turned, {"final": "practice"})[0].startswith(
        "practice solves 100 points fewer than final"
    )


@pytest.mark.parametrize("price", [math.inf, math.nan, -1.0])
def test_prices_are_numbers_of_dollars(price):
    with pytest.raises(ConfigError, match="give dollars, 0 or more"):
        Prices(price, 1.0)
    with pytest.raises(ConfigError, match="give dollars, 0 or more"):
        Prices(hour=price)


def test_a_verdict_needs_the_interval_and_the_test():
    first, second = [False] * 6 + [True] * 4, [True] * 5 + [False] + [True] * 4
    assert mcnemar(first, second).p == 0.0625  # 5 gained, none lost
    assert paired_rates(first, second).low > 0
    (told,) = verdicts(compare([result("base", first), result("final", second)]))
    assert told.startswith("final: no proven difference from base, 50 points (")


def test_numbers_in_words():
    assert [points(x) for x in (0.08, 0.1234, -0.002, -0.0001, None)] == ["8", "12.3", "-0.2", "0", "–"]
    assert [rate(x) for x in (0.4127, 1.0, None)] == ["41.3 %", "100.0 %", "–"]
    assert (spread(0.36, 0.471), spread(None, 1.0)) == ("36.0 to 47.1 %", "–")
    assert [p_value(p) for p in (0.0009, 0.0124, None)] == ["p < 0.001", "p = 0.012", "–"]
    assert [cost(x) for x in (1234.5, 1.2, 0.01234, 0.0, None)] == [
        "$1,234.50",
        "$1.20",
        "$0.0123",
        "$0",
        "–",
    ]


def test_cost_by_hand():
    tokens = Tokens(2000, 100)
    # 1,000 tasks: 2M prompt tokens at $0.5, 0.1M sampled at $2.
    assert Prices(prompt=0.5, sampled=2.0).of_1000(tokens, None) == pytest.approx(1.0 + 0.2)
    assert Prices(hour=3.6).of_1000(None, 2.0) == pytest.approx(2.0)
    assert Prices().of_1000(tokens, 2.0) is None
    assert Prices(prompt=0.5, sampled=2.0).of_1000(None, 2.0) is None
    assert Prices(hour=3.6).of_1000(tokens, None) is None
    with pytest.raises(ConfigError, match="both --price-in and --price-out"):
        Prices(prompt=1.0)
    with pytest.raises(ConfigError, match="not both"):
        Prices(prompt=1.0, sampled=1.0, hour=1.0)


def test_tokens_and_cost_of_arms():
    known, unknown = result("a", [True] * 4, Tokens(1000, 50), seconds=8.0), result("b", [True] * 4)
    arms = compare([known, unknown], Prices(prompt=1.0, sampled=10.0))
    assert arms[0]["tokens"] == {"prompt": 1000, "sampled": 50, "sampled_low": 50, "sampled_high": 50}
    assert arms[0]["seconds"] == 2.0
    assert arms[0]["cost_per_1000"] == pytest.approx(1.5)
    assert (arms[1]["tokens"], arms[1]["cost_per_1000"], arms[1]["seconds"]) == (None, None, None)
    mixed = [*known.outcomes, *unknown.outcomes]
    assert tokens_a_task(mixed) is None  # the mean of those known would pass for that of all
    assert tokens_a_task(known.outcomes) == Tokens(1000, 50)


def test_prompt_tokens_are_those_an_api_is_sent():
    read, said = (lambda n: Segment((1,) * n)), (lambda n: Segment((1,) * n, sampled=True))
    path = (read(10), said(3), read(4), said(2))
    trajectory = Trajectory(Task("t"), path, (), Stop.ANSWERED, Scored(1.0), forks=((read(5), said(1)),))
    assert prompt_tokens(trajectory) == 5 + 10 + 17  # each turn reads all before it
    assert trajectory.sampled_tokens == 6


def test_evaluate_logs_greedy_and_sampled_episodes(tmp_path):
    fetch = call_text("fetch", '{"box": "red"}')
    script = engine([fetch, "x", fetch, "no", "done"])  # greedy; then two tries, turn about
    log = tmp_path / "evaluation/final.jsonl"
    found = evaluate(
        script,
        CHAT,
        Shelf,
        Shelf.tasks.train[:1],
        arm="final",
        max_tokens=400,
        tries=Tries(k=2, temperature=0.5),
        log=log,
    )
    assert found.successes == [True]
    (greedy,) = read_outcomes(log)
    assert (greedy,) == found.outcomes
    assert greedy.answer == "x"
    assert greedy.tokens.sampled == len(ids_of(fetch)) + len(ids_of("x"))
    interaction = Interaction(Shelf(), Shelf.tasks.train[0])
    prompt = CHAT.prompt(interaction.messages, interaction.schemas)
    told = CHAT.continuation(
        (*interaction.messages, CHAT.parse(ids_of(fetch)).message),
        (Message("tool", "here is red", name="fetch"),),
        interaction.schemas,
    )
    assert greedy.tokens.prompt == 2 * len(prompt) + len(ids_of(fetch)) + len(told)
    assert samples_log(log) == tmp_path / "evaluation/samples/final.jsonl"
    assert tuple(read_outcomes(samples_log(log))) == found.sampled.outcomes[0]
    assert read_result("final", log, Tries(k=2, temperature=0.5)) == found
    assert read_result("final", log) == replace(found, sampled=None)
    with pytest.raises(DataError, match="does not hold 3 tries of every task of final.jsonl"):
        read_result("final", log, Tries(k=3))
    assert found.seconds > 0
    samples = found.summary()["samples"]
    assert (samples["temperature"], samples["pass_hat"], samples["pass_at"]) == (0.5, [0.5, 0.0], [0.5, 1.0])
    assert samples["distinct"] == 1.0


def record(**changes):
    said = [{"role": "user", "content": "go"}, {"role": "assistant", "content": " 7 "}]
    return {"task": "t", "success": True, "reward": 1.0, "stop": "answered", "messages": said} | changes


def test_final_answers():
    assert final_answer(record()) == "7"
    assert final_answer(record(stop="length")) is None
    assert final_answer(record(messages=[])) is None
    calls = [{"name": "ring", "arguments": {"b": 1, "a": 2}}]
    called = [{"role": "assistant", "content": "", "tool_calls": calls}]
    assert final_answer(record(messages=called, stop="env_done")) == json.dumps(
        {"arguments": {"a": 2, "b": 1}, "name": "ring"}
    )


def test_a_torn_last_line_is_no_episode_and_a_damaged_one_is_named(tmp_path):
    log = tmp_path / "base.jsonl"
    assert read_rows(log) == []
    append_rows(log, [record(), record(task="u")])
    with log.open("a") as file:
        file.write('{"task": "v", "succ')
    assert [outcome.task for outcome in read_outcomes(log)] == ["t", "u"]
    assert read_outcomes(log)[0].tokens is None
    for text, reason in [("{bad}", "line 1: Expecting"), ("[]", "line 1: expected an object")]:
        log.write_text(text + "\n")
        with pytest.raises(DataError, match=reason):
            read_rows(log)
    log.write_text(json.dumps(record(success="yes")) + "\n")
    with pytest.raises(DataError, match="no outcome of an episode: TypeError: 'yes'"):
        read_outcomes(log)


def test_summary_of_nothing_scored():
    summary = result("base", [None, None]).summary()
    assert (summary["success"], summary["n"], summary["unscored"], summary["reward"]) == (None, 0, 2, None)
    assert not math.isnan(summary["low"])
