"""A person, a script, a model or a log acts in an environment; what is kept can be trained on."""

import io
import json
import sys

import pytest

from renshu.cli import main
from renshu.cli.transcript import lines
from renshu.data.dialogues import dialogues_of_log, read_dialogues
from renshu.envs import Environment, Tasks, call, demonstration_row, reward, say, success
from renshu.envs.moves import Think
from renshu.errors import ConfigError, DataError, ToolError
from renshu.pipeline.environments import environment_of, load_environment
from renshu.pipeline.play import choose_tasks, collect_from_script, play_by_hand, save_rows
from renshu.pipeline.typed import read_typed, usage
from renshu.tools import ToolSpec, tool
from renshu.types import Message, Scored, Task, ToolCall
from tiny_models import qwen_template, save_tiny_model
from tiny_runs import ECHO


class Desk(Environment):
    """订单台: Chinese docs, prompts and data."""

    system = "用工具查询。"
    max_turns = 3
    tasks = Tasks(train=[Task("desk/train/0", {}), Task("desk/train/1", {})], test=[Task("desk/test/0", {})])

    def setup(self, task):
        return "王芳的包裹哪天到？"

    @tool
    def 查询(self, 顾客: str, 件数: int = 1, 加急: bool = False, 标签: list[str] | None = None) -> str:
        """查顾客的包裹。

        参数:
            顾客: 姓名
            件数（可选）: 几件
        """
        if 顾客 != "王芳":
            raise ToolError(f"没有顾客 {顾客}")
        return f"{件数} 件，3 月 5 日到"

    @success
    def solved(self, trajectory):
        return "3 月 5 日" in trajectory.messages[-1].content

    @reward(1.0)
    def right(self, trajectory):
        return float(self.solved(trajectory))

    def solve(self):
        yield call("查询", 顾客="王芳")
        yield say("3 月 5 日到。")


TOOLS = {spec.name: spec for spec in Desk().tools()}


def typed(line):
    return read_typed(line, TOOLS)


def arguments(line):
    (only,) = typed(line).calls
    assert only.name == "查询"
    return only.arguments


def test_a_tool_in_chinese_is_shown_as_it_is_written():
    function = TOOLS["查询"].schema["function"]
    assert (function["name"], function["description"]) == ("查询", "查顾客的包裹。")
    assert function["parameters"]["properties"]["顾客"] == {"type": "string", "description": "姓名"}
    assert function["parameters"]["properties"]["件数"] == {
        "type": "integer",
        "description": "几件",
        "default": 1,
    }
    assert usage(TOOLS["查询"]) == "查询 顾客=… [件数=…] [加急=…] [标签=…]"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("查询 顾客=王芳", {"顾客": "王芳"}),
        ("查询 顾客=Ada  Baker 件数=2", {"顾客": "Ada  Baker", "件数": 2}),
        ('查询 顾客="a=b c" 加急=true', {"顾客": "a=b c", "加急": True}),
        ("查询 顾客='王 芳'", {"顾客": "王 芳"}),
        ("查询 顾客=5", {"顾客": "5"}),  # text, though it reads as a number
        (
            "查询 顾客=true 件数=many",
            {"顾客": "true", "件数": "many"},
        ),  # the tool says that this is no number
        ('查询 标签=["a", "b"] 顾客=x', {"标签": ["a", "b"], "顾客": "x"}),
        ("查询 标签=null 顾客=x", {"标签": None, "顾客": "x"}),
        ('查询 {"顾客": "王芳", "件数": 3}', {"顾客": "王芳", "件数": 3}),
        ('{"name": "查询", "arguments": {"顾客": "王芳"}}', {"顾客": "王芳"}),
        ('{"function": {"name": "查询", "arguments": "{\\"件数\\": 1}"}}', {"件数": 1}),
        ("查询 顾客=", {"顾客": ""}),
        ("查询", {}),
        ("查询 名字=x", {"名字": "x"}),  # what a tool does not know, it refuses itself
    ],
)
def test_calls_as_a_person_types_them(line, expected):
    assert arguments(line) == expected


def test_several_calls_thoughts_and_answers():
    both = typed('[{"name": "查询", "arguments": {"顾客": "a"}}, {"name": "nothing"}]')
    assert [(c.name, c.arguments) for c in both.calls] == [("查询", {"顾客": "a"}), ("nothing", {})]
    assert typed("think 先查") == Think("先查")
    assert typed("  3 月 5 日到。 ").message == Message("assistant", "3 月 5 日到。")
    assert typed('say {"day": 5}').content == '{"day": 5}'
    assert typed("say think twice").content == "think twice"
    assert typed("it is a=b").content == "it is a=b"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("", "type a call or an answer"),
        ("lookup name=x", "there is no tool 'lookup'; there are: 查询. To answer this: say lookup name=x"),
        ("查询 王芳", "write a call as: 查询 顾客=… [件数=…] [加急=…] [标签=…]"),
        ("查询 顾客=a 顾客=b", "顾客 is given twice"),
        ('{"name": ', "that is not JSON"),
        ("[1]", "a call must be an object"),
        ('{"city": "x"}', 'a call is {"name": …'),
        ('{"name": "查询", "arguments": [1]}', "arguments must be an object"),
    ],
)
def test_slips_are_told_and_cost_nothing(line, told):
    with pytest.raises(DataError) as error:
        typed(line)
    assert told in str(error.value)


def play(*said):
    shown, hints, left = [], [], iter(said)
    trajectory = play_by_hand(
        Desk(), Desk.tasks.train[0], lambda: next(left, None), shown.append, hints.append
    )
    return trajectory, shown, hints


def test_a_person_is_scored_as_a_model_is():
    trajectory, shown, hints = play(
        "think 先查", "think 再答", "查询 王芳", "查询 顾客=王芳 件数=2", "3 月 5 日到。"
    )
    assert trajectory.score == Scored(1.0, {"right": 1.0}, True)
    assert trajectory.stop == "answered"
    assert [(m.role, m.content) for m in shown] == [
        ("system", "用工具查询。"),
        ("user", "王芳的包裹哪天到？"),
        ("tool", "2 件，3 月 5 日到"),
    ]
    assert trajectory.messages[2].reasoning == "先查\n再答"
    assert len(hints) == 1
    assert trajectory.counts == {"turns": 2, "calls": 1, "bad_calls": 0, "tool_errors": 0, "timeouts": 0}


def test_a_bad_call_is_answered_as_to_a_model_and_leaving_scores_nothing():
    trajectory, shown, _ = play("查询 名字=王芳", "查询 顾客=李四", "不知道")
    assert [m.content for m in shown[2:]] == [
        "error: 查询: unknown argument '名字'; known: 顾客, 件数, 加急, 标签; missing argument '顾客'",
        "error: 没有顾客 李四",
    ]
    assert trajectory.score == Scored(0.0, {"right": 0.0}, False)
    assert (trajectory.counts["bad_calls"], trajectory.counts["tool_errors"]) == (1, 1)
    assert play("查询 顾客=王芳")[0] is None


def test_a_row_is_in_openais_shape_and_is_read_back(tmp_path):
    trajectory, _, _ = play("think 先查", "查询 顾客=王芳", "3 月 5 日到。")
    schemas = [spec.schema for spec in Desk().tools()]
    row = demonstration_row(trajectory.messages, schemas, trajectory)
    assert row["messages"][2:] == [
        {
            "role": "assistant",
            "content": "",
            "reasoning": "先查",
            "tool_calls": [
                {
                    "id": "call_0",
                    "type": "function",
                    "function": {"name": "查询", "arguments": {"顾客": "王芳"}},
                }
            ],
        },
        {"role": "tool", "content": "1 件，3 月 5 日到", "tool_call_id": "call_0", "name": "查询"},
        {"role": "assistant", "content": "3 月 5 日到。"},
    ]
    assert (row["task"], row["success"], row["reward"]) == ("desk/train/0", True, 1.0)
    path = tmp_path / "deep" / "demos.jsonl"
    save_rows(path, [row])
    path.write_bytes(path.read_bytes().rstrip(b"\n"))  # an editor that ends no line
    save_rows(path, [row])
    read = read_dialogues(path)
    assert len(read.items) == 2
    for messages, tools in read.items:
        assert [(m.role, m.content, m.reasoning) for m in messages] == [
            (m.role, m.content, m.reasoning) for m in trajectory.messages
        ]
        assert messages[2].tool_calls == (ToolCall("查询", {"顾客": "王芳"}, "call_0"),)
        assert list(tools) == schemas


def test_scripts_are_counted_by_success():
    collected = collect_from_script(Desk, "solve", Desk.tasks.train)
    assert (collected.success, len(collected.rows)) == ({"solved": 2}, 2)
    with pytest.raises(ConfigError, match=r"Desk has no hurried\(\)"):
        collect_from_script(Desk, "hurried", Desk.tasks.train)


def test_what_did_not_solve_its_task_can_be_left_out(tmp_path):
    (tmp_path / "bell.py").write_text(ECHO, encoding="utf-8")
    bell = load_environment("bell.py", tmp_path)
    collected = collect_from_script(bell, "hurried", bell.tasks.train[:3], only_success=True)
    assert (collected.success, collected.left_out, collected.rows) == ({"failed": 3}, {"not solved": 3}, [])


def test_demonstrations_come_from_training_tasks_alone():
    assert [task.id for task in choose_tasks(Desk, "train", 1, 5, to_save=True)] == ["desk/train/1"]
    assert [task.id for task in choose_tasks(Desk, "test", 0, 1)] == ["desk/test/0"]
    with pytest.raises(ConfigError, match="what is trained on must not be measured"):
        choose_tasks(Desk, "test", 0, 1, to_save=True)
    with pytest.raises(ConfigError, match="there is no train task 2: the last one is 1"):
        choose_tasks(Desk, "train", 2, 1)
    with pytest.raises(ConfigError, match="expected one of train, dev, test"):
        choose_tasks(Desk, "all", 0, 1)


def said(name="查询", value='{"顾客": "王芳"}', **more):
    return {
        "role": "assistant",
        "tool_calls": [{"id": "a", "function": {"name": name, "arguments": value}}],
    } | more


USER, ANSWER = {"role": "user", "content": "?"}, {"role": "tool", "tool_call_id": "a", "content": "3 月"}
LAST = {"role": "assistant", "content": "好"}


def test_logs_are_checked_against_the_tools(tmp_path):
    log = tmp_path / "log.jsonl"
    rows = [
        [{"role": "system", "content": "another prompt"}, USER, said(), ANSWER, LAST],
        [USER, LAST],
        [USER, said("删除"), ANSWER, LAST],
        [USER, said(value='{"件数": "two", "顾客": "x"}'), ANSWER, LAST],
        [USER, said(), LAST],
        [USER, said()],
        [USER, ANSWER, LAST],
        [USER, LAST, USER],
        [LAST],
    ]
    lines_ = [json.dumps({"messages": messages}, ensure_ascii=False) for messages in rows] + ["{"]
    log.write_text("\n".join(lines_), encoding="utf-8")
    found = dialogues_of_log(log, Desk)
    assert [[m.role for m in messages] for messages, _ in found.items] == [
        ["system", "user", "assistant", "tool", "assistant"],
        ["system", "user", "assistant"],
    ]
    assert found.items[0][0][0].content == "用工具查询。"
    assert [tool["function"]["name"] for tool in found.items[0][1]] == ["查询"]
    assert found.set_aside == {
        "not JSON": 1,
        "no tool '删除'": 1,
        "查询: 件数: expected an integer, got 'two'": 1,
        "a call without its answer": 2,
        "an answer without its call": 1,
        "ends with the user": 1,
        "does not begin with the user": 1,
    }
    log.write_text(lines_[2], encoding="utf-8")
    with pytest.raises(DataError, match="no dialogue that fits Desk"):
        dialogues_of_log(log, Desk)


def test_the_environment_of_a_file_of_a_recipe_and_of_a_windows_path(tmp_path):
    (tmp_path / "bell.py").write_text(ECHO, encoding="utf-8")
    recipe = tmp_path / "bell.yaml"
    recipe.write_text("env: bell.py:Bell\nstages: [{name: a, sft: {}}]\n", encoding="utf-8")
    for target in (str(recipe), str(tmp_path / "bell.py"), f"{tmp_path / 'bell.py'}:Bell"):
        assert environment_of(target).__name__ == "Bell"
    with pytest.raises(ConfigError, match=r"no such file"):
        load_environment(r"C:\work\bell.py:Bell", tmp_path)
    (tmp_path / "two.py").write_text(ECHO + "\nclass Second(Bell):\n    pass\n", encoding="utf-8")
    with pytest.raises(
        ConfigError, match=r"write file.py:Class to say which one; .*two.py defines Bell, Second"
    ):
        load_environment("two.py", tmp_path)


@pytest.fixture
def verb(monkeypatch, capsys):
    def run(*words, stdin=""):
        monkeypatch.setattr(sys, "argv", ["renshu", "play", *map(str, words)])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        return capsys.readouterr().out

    return run


def test_play_from_a_pipe_saves_what_can_be_trained_on(tmp_path, verb):
    (tmp_path / "bell.py").write_text(ECHO, encoding="utf-8")
    demos = tmp_path / "demos.jsonl"
    out = verb(tmp_path / "bell.py", "--save", demos, stdin="help ring\nring\nb\n")
    assert '"description": "Ring."' in out
    assert "  tool ding" in out
    assert out.split("you: b\n")[1].split("\n")[:4] == [
        "ended: answered",
        "  right: 1",
        "reward: 1",
        "success: yes",
    ]
    assert "left before the end: no score, nothing saved" in verb(
        tmp_path / "bell.py", "--save", demos, stdin="ring\n"
    )
    (row,) = [json.loads(line) for line in demos.read_text("utf-8").splitlines()]
    assert row["messages"][-1] == {"role": "assistant", "content": "b"}
    out = verb(tmp_path / "bell.py", "--save", tmp_path / "slips.jsonl", stdin="c\n")
    assert ", though not solved: --only-success leaves such out" in out
    out = verb(tmp_path / "bell.py", "--save", demos, "--only-success", stdin="c\n")
    assert "not saved: not solved" in out
    assert len(read_dialogues(demos).items) == 1


def test_play_by_scripts_models_and_logs(tmp_path, verb):
    (tmp_path / "bell.py").write_text(ECHO, encoding="utf-8")
    demos, again = tmp_path / "demos.jsonl", tmp_path / "again.jsonl"
    out = verb(tmp_path / "bell.py", "--policy", "solve", "--count", 4, "--save", demos)
    assert out.splitlines()[0] == "solve: 4 episodes: 4 solved, 0 failed, 0 unscored"
    assert out.endswith(f"saved: 4 to {demos}\n")
    out = verb(tmp_path / "bell.py", "--policy", demos, "--save", again)
    assert "4 dialogues fit the environment" in out
    assert [r["messages"] for r in map(json.loads, again.open("rb"))] == [
        r["messages"] for r in map(json.loads, demos.open("rb"))
    ]
    model = save_tiny_model(tmp_path / "model", template=qwen_template())
    out = verb(tmp_path / "bell.py", "--policy", model, "--count", 2, "--max-tokens", 3)
    assert out.splitlines()[0] == f"{model}: 2 episodes: 0 solved, 2 failed, 0 unscored"


def test_widths_of_chinese_in_the_transcript():
    (shown,) = lines(Message("assistant", tool_calls=(ToolCall("查询", {"顾客": "王芳"}),)))
    assert shown.plain == ' agent → 查询(顾客="王芳")'
    assert shown.cell_len == len(shown.plain) + 6  # each of the six characters takes two columns
    for role in ("system", "user", "assistant", "tool"):
        (shown,) = lines(Message(role, "王芳"))
        assert shown.cell_len == 11


def test_a_name_of_a_tool_needs_no_latin_letters_but_must_be_a_name():
    assert isinstance(TOOLS["查询"], ToolSpec)
    with pytest.raises(Exception, match="a tool needs a name"):
        ToolSpec.from_function(lambda 顾客: 顾客)
