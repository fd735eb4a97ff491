"""Bad input ends in a sentence before any training, and leaves no run folder behind."""

import json
from pathlib import Path

import pytest
import yaml

from renshu.errors import (
    ConfigError,
    ContextOverflow,
    ContractError,
    DataError,
    InfrastructureError,
    ModelError,
    TemplateError,
)
from renshu.pipeline.recipe import read_recipe
from renshu.pipeline.train import train_recipe
from tiny_models import qwen_template, save_tiny_model
from tiny_runs import ECHO

STAGES = [
    {"name": "warm-up", "sft": {"demonstrations": 4}},
    {"name": "practice", "grpo": {"steps": 1, "group": 2, "tasks_per_step": 1}},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("model"), template=qwen_template())


@pytest.fixture
def play(tmp_path, model):
    """Write a recipe with changes, a bell.py with replaced text, and play it."""

    def run(*overrides: str, environment: str = ECHO, text: str | None = None, **changes) -> Path:
        (tmp_path / "bell.py").write_text(environment, encoding="utf-8")
        data = {"env": "bell.py:Bell", "model": {"name": str(model)}, "stages": STAGES} | changes
        path = tmp_path / "bell.yaml"
        path.write_text(text or yaml.safe_dump(data), encoding="utf-8")
        recipe = read_recipe(str(path), [f"out={tmp_path / 'run'}", *overrides])
        return train_recipe(recipe, name="bell", base=tmp_path)

    yield run
    assert not (tmp_path / "run").exists()


def test_unknown_keys_name_the_nearest(play):
    with pytest.raises(ConfigError, match=r"bell.yaml: stages.1.grpo: unknown key 'grup' .*mean 'group'"):
        play("stages.1.grpo.grup=4")
    with pytest.raises(ConfigError, match="unknown key 'sead'"):
        play(sead=1)


def test_wrong_types_name_the_key(play):
    with pytest.raises(ConfigError, match=r"stages\.1\.grpo\.steps: .*got 'many'"):
        play("stages.1.grpo.steps=many")
    with pytest.raises(ConfigError, match=r"seed: expected a number, not True"):
        play("seed=true")


def test_missing_files(play, tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere.yaml: no such recipe file"):
        read_recipe(str(tmp_path / "nowhere.yaml"))
    with pytest.raises(ConfigError, match=r"gone.py: no such file"):
        play("env=gone.py:Bell")
    with pytest.raises(ModelError, match="no such folder"):
        play("model.name=./gone")
    with pytest.raises(DataError, match=r"gone.jsonl cannot be read: No such file"):
        play("stages.0.sft.data=gone.jsonl")
    with pytest.raises(ConfigError, match=r"gone.jinja: no such file; expected own, fallback"):
        play("model.template=gone.jinja")


def test_environment_that_is_none(play):
    with pytest.raises(ConfigError, match=r"there is no such name; bell.py defines Bell"):
        play("env=bell.py:Bel")
    with pytest.raises(ConfigError, match=r"no subclass of renshu.Environment"):
        play("env=bell.py:draw")
    with pytest.raises(ConfigError, match=r"neither built in \(flights, repairs\) nor of the form"):
        play("env=flight")
    with pytest.raises(ConfigError, match=r"bell.py cannot be run: ZeroDivisionError"):
        play(environment="1 / 0")


def test_environment_without_reward(play):
    with pytest.raises(ContractError, match="no_reward: mark a method with @reward"):
        play(environment=ECHO.replace("@reward(1.0)", ""))


def test_environment_without_success(play):
    with pytest.raises(ContractError, match="no_success: mark a method with @success"):
        play(environment=ECHO.replace("    @success\n", ""))


def test_tool_without_type_hints(play):
    with pytest.raises(ContractError, match="loudness"):
        play(environment=ECHO.replace("def ring(self)", "def ring(self, loudness)"))


def test_environment_without_demonstrations(play):
    bare = ECHO.replace("def solve(self)", "def _solve(self)")
    with pytest.raises(ConfigError, match=r"stage warm-up: Bell has no solve\(\)"):
        play(environment=bare)
    with pytest.raises(ConfigError, match=r"eval.compare: few-shot needs solved dialogues"):
        play(environment=bare, stages=STAGES[1:], eval={"compare": ["base", "few-shot"]})


def test_empty_split(play):
    with pytest.raises(DataError, match="the test split has no tasks"):
        play(environment=ECHO.replace("test=12", "test=0"))


def test_tokenizer_without_chat_template(play, tmp_path):
    folder = save_tiny_model(tmp_path / "bare", template=None)
    with pytest.raises(TemplateError, match="no chat template"):
        play(f"model.name={folder}")


def test_prompt_longer_than_the_context(play, tmp_path):
    folder = save_tiny_model(tmp_path / "short", template=qwen_template(), context=64)
    with pytest.raises(
        ContextOverflow, match=r"prompt of task draw/train/0 has \d+ tokens, the model's context 64"
    ):
        play(f"model.name={folder}")


def test_group_of_one_with_a_group_baseline(play):
    with pytest.raises(ConfigError, match=r"GRPO needs group >= 2 \(or baseline: none\)"):
        play("stages.1.grpo.group=1")


@pytest.mark.parametrize("temperature", ["0", "1e-300"])
def test_greedy_practice(play, temperature):
    with pytest.raises(ConfigError, match=r"sample.temperature: below 0.0001 is greedy"):
        play(f"stages.1.sample={{temperature: {temperature}}}")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "the file is empty"),
        ("{not json}\n", "not JSON: 1"),
        ('{"messages": [{"role": "user", "content": "x"}]}\n', "no assistant turn: 1"),
        ('{"text": "x"}\n', "no key 'messages': 1"),
        ('{"messages": [{"role": "robot", "content": "x"}]}\n', "unknown role 'robot': 1"),
    ],
)
def test_data_file_without_dialogues(play, tmp_path, content, reason):
    (tmp_path / "demos.jsonl").write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=f"demos.jsonl holds no dialogue .*{reason}"):
        play("stages.0.sft.data=demos.jsonl")


def test_rows_without_room_for_an_answer(play):
    with pytest.raises(DataError, match="have no token to train on within max_length: 16"):
        play("stages.0.sft.max_length=16")


def test_sample_settings_of_a_stage_that_samples_nothing(play):
    with pytest.raises(ConfigError, match=r"stages\.0: sample: sft samples nothing here"):
        play("stages.0.sample.max_tokens=9")


def test_stage_with_two_algorithms_or_none(play):
    with pytest.raises(ConfigError, match="exactly one of sft, dpo, kto, grpo and ppo, not none"):
        play(stages=[{"name": "a"}])
    with pytest.raises(ConfigError, match="exactly one of sft, dpo, kto, grpo and ppo, not sft and grpo"):
        play(stages=[{"name": "a", "sft": {}, "grpo": {}}])
    with pytest.raises(ConfigError, match=r"must differ from each other .*\['base'\]"):
        play(stages=[{"name": "base", "sft": {}}])


def test_yaml_that_is_none(play):
    with pytest.raises(ConfigError, match="not readable as YAML"):
        play(text="stages: [")
    with pytest.raises(ConfigError, match="is empty"):
        play(text="# nothing")


def test_dialogues_are_read_in_openai_form(tmp_path):
    from renshu.data.dialogues import read_dialogues
    from renshu.types import Message, ToolCall

    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    rows = [
        {
            "messages": [
                {"role": "user", "content": "go"},
                {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call]},
                {"role": "tool", "content": "2", "tool_call_id": "c1"},
            ],
            "tools": [{"type": "function"}],
        },
        {"messages": [{"role": "assistant", "content": ["parts"]}]},
    ]
    path = tmp_path / "d.jsonl"
    path.write_text("\ufeff" + "\n".join(map(json.dumps, rows)), encoding="utf-8")
    read = read_dialogues(path)
    assert read.set_aside == {"content that is a list": 1}
    assert read.items == [
        (
            [
                Message("user", "go"),
                Message("assistant", "", reasoning="hm", tool_calls=(ToolCall("f", {"x": 1}, "c1"),)),
                Message("tool", "2", tool_call_id="c1"),
            ],
            [{"type": "function"}],
        )
    ]


def test_dialogues_of_wrong_types_are_set_aside_by_reason(tmp_path):
    from renshu.data.dialogues import read_dialogues

    said = {"role": "assistant", "content": "x"}

    def call(**function):
        return {"role": "assistant", "tool_calls": [{"function": function}]}

    rows = [
        [1],
        {"messages": 5},
        {"messages": [5]},
        {"messages": [said | {"reasoning": 5}]},
        {"messages": [said | {"name": 5}]},
        {"messages": [call(name=5, arguments={})]},
        {"messages": [call(name="f", arguments="[1]")]},
        {"messages": [call(name="f", arguments={"x": float("nan")})]},
        {"messages": [said], "tools": 5},
        {"messages": [said], "tools": "{bad"},
        *({"messages": [said], "tools": tools} for tools in (None, "", " ", "[]", "null", [])),
        {"messages": [said], "tools": '[{"name": "f"}]'},
    ]
    path = tmp_path / "d.jsonl"
    path.write_text("\n".join([*map(json.dumps, rows), "[" * 100_000]), encoding="utf-8")
    read = read_dialogues(path)
    assert read.set_aside == {
        "no object with a list of messages": 2,
        "a message that is no object": 1,
        "reasoning that is a int": 1,
        "name that is a int": 1,
        "a call without a name": 1,
        "arguments that are no object": 1,
        "tools that are no list of objects": 1,
        "tools that are not JSON": 1,
        "not JSON": 2,
    }
    assert [tools for _, tools in read.items] == [[]] * 6 + [[{"name": "f"}]]


def test_environment_files_and_modules_that_fail(play, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"bell.py cannot be run: SystemExit: 0"):
        play(environment="raise SystemExit(0)")
    with pytest.raises(ConfigError, match=r"bell.py cannot be run: SyntaxError"):
        play(environment="def")
    with pytest.raises(ConfigError, match=r"env: \.\. cannot be imported: TypeError"):
        play("env=..:Bell")
    (tmp_path / "brokenmodule.py").write_text("def")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"env: brokenmodule cannot be imported: SyntaxError"):
        play("env=brokenmodule:Bell")


def test_a_setup_or_a_draw_that_fails_on_a_later_task_is_named(play):
    later = ECHO.replace('return "go"', 'return "go" if "/4" not in task.id else 1 / 0')
    with pytest.raises(InfrastructureError, match=r"Bell.setup, task draw/train/4: ZeroDivisionError"):
        play(environment=later)
    with pytest.raises(DataError, match=r"task draw/train/0 cannot be made: ZeroDivisionError"):
        play(environment=ECHO.replace("random.randint(0, 99)", "1 / 0"))


def test_a_home_that_does_not_exist(play):
    with pytest.raises(ConfigError, match=r"out: ~nobody-of-that-name/x: "):
        play("out=~nobody-of-that-name/x")
