"""Must-pass cases: read, played, judged; a failing one refuses to train."""

import json

import pytest

from renshu.check.cases import find_task, play_cases, read_cases
from renshu.errors import ConfigError, ContractError, DataError
from renshu.pipeline.recipe import read_recipe
from renshu.pipeline.train import train_recipe
from test_check_faults import Clerk, Store
from tiny_models import qwen_template, save_tiny_model
from tiny_runs import write_recipe

ANN = "{name: Ann, room: 101}"
CALL = "{call: look_up, arguments: {name: Ann}}"


def results(tmp_path, text, environment=Clerk):
    path = tmp_path / "cases.yaml"
    path.write_text(text, encoding="utf-8")
    return play_cases(environment, read_cases(path))


def test_moves_answers_and_messages_are_played_and_compared(tmp_path):
    text = f"""
- {{name: right, task: {ANN}, moves: [{CALL}, {{think: easy, say: "101"}}], success: true, reward: 1}}
- {{name: guess, task: {ANN}, answer: "100", success: false, reward: [0, 0.2]}}
- name: messages
  task: {ANN}
  messages:
    - {{role: user, content: ignored}}
    - {{role: assistant, tool_calls: [{{function: {{name: look_up, arguments: '{{"name": "Ann"}}'}}}}]}}
    - {{role: tool, content: ignored}}
    - {{role: assistant, content: "101"}}
  reward: 1.0
"""
    played = results(tmp_path, text)
    assert [(r.name, r.passed, r.success, r.reward) for r in played] == [
        ("right", True, True, 1.0),
        ("guess", True, False, 0.0),
        ("messages", True, True, 1.0),
    ]


def test_what_differs_is_said_exactly(tmp_path):
    text = f"""
cases:
  - {{task: {ANN}, answer: "101", success: false}}
  - {{task: {ANN}, answer: "102", success: true, reward: [0.5, 1]}}
  - {{task: {ANN}, moves: [{CALL}], success: true}}
  - {{task: {ANN}, moves: [{{say: "101"}}, {{say: "102"}}], success: true}}
  - {{task: {{name: Ann}}, answer: "101", success: true}}
"""
    assert [result.problem for result in results(tmp_path, text)] == [
        "success is True, expected False",
        "success is False, expected True; reward is 0, expected 0.5 to 1 (parts {'right': 0.0})",
        "the episode goes on after the 1 moves; end them with what the policy says",
        "the episode ended (answered) after 1 of 2 moves",
        "it is unscored: reward_failed: part 'right': KeyError: 'room'; "
        "its task lacks 'room', which the environment's tasks have",
    ]


def test_tasks_are_found_by_number_and_by_id():
    assert find_task(Store, "test/3") == Store.tasks.test[3]
    assert find_task(Store, "store/dev/2") == Store.tasks.dev[2]
    with pytest.raises(DataError, match="there is no task test/20: the split has 20"):
        find_task(Store, "test/20")
    with pytest.raises(DataError, match="there is no task 'nails'; write split/number"):
        find_task(Store, "nails")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"- {{task: {ANN}, success: true}}", "write exactly one of moves, messages and answer"),
        (f'- {{task: {ANN}, answer: "1"}}', "say what it must be worth: success, reward or both"),
        (f'- {{task: {ANN}, answer: "1", succes: true}}', "did you mean 'success'"),
        (f"- {{task: {ANN}, moves: [{{think: x}}], reward: 1}}", "write either call .with arguments. or say"),
        ("", "cases"),
        ("seed: 1", "unknown key 'seed'; known keys: cases"),
    ],
)
def test_files_that_are_no_cases_are_refused(tmp_path, text, reason):
    with pytest.raises(ConfigError, match=reason):
        results(tmp_path, text)


def test_a_failing_case_refuses_to_train_and_passing_ones_are_played_again(tmp_path):
    save_tiny_model(tmp_path / "model", template=qwen_template())
    path = write_recipe(
        tmp_path,
        tmp_path / "model",
        stages=[{"name": "warm-up", "sft": {"demonstrations": 2}}],
        eval={"tasks": 1, "dev_tasks": 1, "max_tokens": 3},
        checks={"must_pass": "cases.yaml"},
    )
    cases = tmp_path / "cases.yaml"
    cases.write_text("- {name: bell, task: test/0, answer: b, success: false}", encoding="utf-8")
    recipe = read_recipe(str(path))
    with pytest.raises(ContractError) as refused:
        train_recipe(recipe, name="bell", base=tmp_path)
    assert str(refused.value) == (
        "1 of 1 must-pass cases fail, so nothing is trained:\n"
        "  - bell: success is True, expected False\n"
        "Mend Bell or the cases."
    )
    assert not (tmp_path / "run-bell-3").exists()
    cases.write_text("- {name: bell, task: test/0, answer: b, success: true}", encoding="utf-8")
    run = train_recipe(recipe, name="bell", base=tmp_path)
    assert json.loads((run / "must_pass.json").read_text("utf-8")) == {
        "cases": 1,
        "passed": 1,
        "results": [{"name": "bell", "problem": "", "success": True, "reward": 1.0}],
    }
