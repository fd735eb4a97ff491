"""A recipe, checked with its model: template, budgets, the dry run, and the verb."""

import json

import pytest

from renshu.pipeline.check import check
from tiny_models import qwen_template, save_tiny_model
from tiny_runs import write_recipe

PLAIN = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ENDLESS = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
STAGES = [
    {"name": "warm-up", "sft": {"demonstrations": 4}},
    {"name": "practice", "grpo": {"group": 3}, "sample": {"max_tokens": 6}},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checked")
    save_tiny_model(folder / "model", template=qwen_template(), context=2048)
    return folder


@pytest.fixture(scope="module")
def recipe(folder):
    return write_recipe(folder, folder / "model", stages=STAGES)


@pytest.fixture(scope="module")
def report(recipe):
    return check(str(recipe), samples=4)


def codes(recipe, *overrides, dry_run=False):
    report = check(str(recipe), overrides=overrides, dry_run=dry_run, samples=2)
    return {finding.code: finding for finding in report.findings}


def test_a_sound_recipe_passes_and_is_rehearsed(report):
    assert report.passed
    run = report.dry_run
    assert (run.tasks, run.group, run.first) == (8, 3, False)
    assert run.metrics["rollouts"] == 24
    assert run.metrics["tokens/max"] <= 6


def test_what_will_be_trained_on_is_shown_as_text(report):
    row, episode = report.dry_run.samples
    assert row.about == "a row of warm-up (sft)"
    trained = [span.text for span in row.spans if span.trained]
    assert trained in (["b<|im_end|>"], ["c<|im_end|>"])
    assert row.spans[0].text.endswith("<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\n")
    assert row.trained == 2
    assert episode.about.startswith("an episode of practice: task draw/train/")
    assert sum(span.trained for span in episode.spans) >= 1
    assert episode.tokens > episode.trained > 0


def test_without_a_warm_up_groups_without_signal_are_a_warning(recipe):
    found = codes(
        recipe, "stages=[{name: practice, grpo: {group: 2}, sample: {max_tokens: 1}}]", dry_run=True
    )
    assert found["no_signal"].severity == "warning"
    assert found["truncated"].what == "100% of the episodes are cut by the token budget"


def test_a_template_without_tools_is_named_unless_the_fallback_is_asked_for(recipe, folder):
    (folder / "plain.jinja").write_text(PLAIN, encoding="utf-8")
    assert codes(recipe, "model.template=plain.jinja")["template_without_tools"].severity == "error"
    assert "template_without_tools" not in codes(recipe)
    assert "template_without_tools" not in codes(recipe, "model.template=fallback")


def test_a_template_that_never_ends_a_turn_is_refused(recipe, folder):
    (folder / "endless.jinja").write_text(ENDLESS, encoding="utf-8")
    found = codes(recipe, "model.template=endless.jinja")
    assert "would never learn to stop" in found["template_refused"].what


def test_budgets_below_the_gold_solution_are_named(recipe):
    found = codes(recipe, "stages.1.sample.max_tokens=1", "eval.max_tokens=2")  # "b" and its stop token
    assert found["tokens_too_few"].what == (
        "the gold solution takes 2 sampled tokens, stages.1.sample.max_tokens allows 1"
    )
    assert "tokens_too_few" not in codes(recipe, "stages.1.sample.max_tokens=2", "eval.max_tokens=2")


def test_a_prompt_beyond_the_context_is_named_and_nothing_sampled(folder):
    save_tiny_model(folder / "short", template=qwen_template(), context=64)
    recipe = write_recipe(folder, folder / "short", stages=STAGES)
    report = check(str(recipe), samples=2)
    (finding,) = [finding for finding in report.findings if finding.code == "prompt_too_long"]
    assert finding.what.endswith("tokens, the model's context 64")
    assert report.dry_run is None
    write_recipe(folder, folder / "model", stages=STAGES)


def test_an_environment_that_is_not_there_is_a_finding(recipe):
    (finding,) = codes(recipe, "env=bell.py:Gong").values()
    assert finding.code == "not_loaded"
    assert "bell.py defines Bell" in finding.what


def test_the_verb_prints_tools_policies_and_sample(call, recipe):
    code, out, _ = call("check", recipe, "--tasks", 2)
    assert code == 0
    assert "tool ring()  Ring." in out
    assert "dry run: 8 tasks × 3 episodes" in out
    assert "<|im_end|>⟧" in out  # trained, where there are no colours
    assert "bell.yaml: 0 errors, " in out


def test_the_verb_ends_with_1_on_errors_and_speaks_json(call, recipe):
    code, out, _ = call("check", recipe, "eval.max_tokens=1", "--no-dry-run", "--json", "--tasks", 2)
    data = json.loads(out)
    assert (code, data["passed"], data["dry_run"]) == (1, False, None)
    assert "tokens_too_few" in [finding["code"] for finding in data["findings"]]
    assert set(data["findings"][0]) == {"code", "severity", "where", "what", "to_do"}
    gold = next(line for line in data["policies"] if line["policy"] == "gold")
    assert (gold["success"], gold["mean"]) == (1.0, 1.0)


def test_settings_of_something_that_is_no_recipe_are_refused(call, folder):
    code, out, _ = call("check", f"{folder}/bell.py:Bell", "seed=1")
    assert (code, out) == (1, "")
