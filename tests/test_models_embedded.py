"""The embedded model: what its files promise, and what its pretraining data must not contain."""

import hashlib
import json
import re
import sys
from pathlib import Path
from random import Random

import pytest
from transformers import AutoTokenizer

from renshu.chat import ChatFormat, qwen2_5
from renshu.envs import flights, repairs
from renshu.types import Message, ToolCall

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "src/renshu/models/embedded"
sys.path.append(str(ROOT / "pretrain"))


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FOLDER)


def test_weights_are_small_and_the_ones_the_log_ends_with():
    weights = FOLDER / "model.safetensors"
    assert weights.stat().st_size <= 8_000_000
    last = json.loads((ROOT / "pretrain/log.jsonl").read_text().splitlines()[-1])
    assert last["sha256"] == hashlib.sha256(weights.read_bytes()).hexdigest()


def test_context():
    assert json.loads((FOLDER / "config.json").read_text())["max_position_embeddings"] >= 4096


def test_template_is_qwens_byte_for_byte(tokenizer):
    assert tokenizer.chat_template == qwen2_5()
    digest = hashlib.sha256(tokenizer.chat_template.encode()).hexdigest()
    assert digest == "cd8e9439f0570856fd70470bf8889ebd8b5d1107207f67a5efb46e342330527f"


def test_digits_are_single_and_chinese_round_trips(tokenizer):
    assert [tokenizer.decode([i]) for i in tokenizer.encode("$9750")] == ["$", "9", "7", "5", "0"]
    for text in ("訂下週去東京的便宜機票，早上出發。", "été – naïve", "a\t b\n\n c", "🛫 {}[]"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_tags_are_text_and_control_tokens_are_not(tokenizer):
    ids = tokenizer.encode("<tool_call></tool_call><think></think><tool_response></tool_response><|im_end|>")
    assert len(ids) == 7
    assert tokenizer.decode(ids, skip_special_tokens=True).startswith("<tool_call></tool_call><think>")
    assert "<|im_end|>" not in tokenizer.decode(ids, skip_special_tokens=True)


def test_a_word_has_the_same_tokens_behind_a_space_and_a_quote(tokenizer):
    word = tokenizer.encode("Tokyo")
    for text in ("to Tokyo", '"Tokyo"'):
        ids = tokenizer.encode(text)
        assert any(ids[i : i + len(word)] == word for i in range(len(ids)))


def test_pretraining_dialogues_read_as_the_template_renders_them(tokenizer):
    from dialogues import Dialogue
    from tools import schema

    tool = schema("grade", "Grade a pan.", [("roof", "string", "Wide roof."), ("n", "integer", "")])
    dialogue = Dialogue("You help.", [tool])
    dialogue.user("Grade it.")
    dialogue.assistant(thought="lowest $\nA $1 take A $1", call=("grade", {"roof": "A", "n": 3}))
    dialogue.tool("ok")
    dialogue.assistant("Done.")
    call = ToolCall("grade", {"roof": "A", "n": 3})
    messages = [
        Message("system", "You help."),
        Message("user", "Grade it."),
        Message("assistant", reasoning="lowest $\nA $1 take A $1", tool_calls=(call,)),
        Message("tool", "ok", name="grade"),
        Message("assistant", "Done."),
    ]
    row = ChatFormat(tokenizer).supervised(messages, [tool])
    assert tokenizer.decode(row.ids) == "".join(text for text, _ in dialogue.pieces).rstrip("\n")
    trained = tokenizer.decode([i for i, t in zip(row.ids, row.trained, strict=True) if t])
    assert trained == "".join(text for text, role in dialogue.pieces if role is not None)


def test_environments_never_occur_in_pretraining_data():
    from dialogues import ask_task, list_task, pick_task

    rng = Random(11)
    makers = (lambda: pick_task(rng, 6), lambda: ask_task(rng), lambda: list_task(rng))
    text = " ".join(piece for _ in range(700) for make in makers for piece, _ in make())
    words = set(re.findall(r"[a-z]+", text.lower()))
    own = {"flight", "flights", "cheapest", "fare", "calendar", "search", "book", "friday", "noon"}
    own |= {
        "non",
        "stops",
        "tokyo",
        "locate",
        "crew",
        "profile",
        "assign",
        "worker",
        "queue",
        "job",
        "van",
        "bike",
    }
    own |= {name.lower() for name in (*flights.CITIES, *repairs.WORKERS, *repairs.SITES, *repairs.SKILLS)}
    assert words & own == set()


def test_tables_in_order_and_filtered():
    from tables import Table

    table = Table(("A1", "B2", "C3"), ("word", "number:$"), (("red", 30), ("blue", 10), ("red", 20)))
    assert table.only(["red"]).ordered("$", lowest=True).text() == "C3 red $20\nA1 red $30"
    assert table.ordered("$", lowest=False).ids == ("A1", "C3", "B2")


def test_dialogues_ask_for_what_the_user_named_and_take_the_first_row():
    from dialogues import list_task, pick_task

    rng = Random(3)
    named = 0
    for index in range(400):
        picks = index % 2 == 0
        text = "".join(text for text, _ in (pick_task(rng, 6) if picks else list_task(rng)))
        tools, calls = text.split("\n</tools>")[0], re.findall(r"<tool_call>\n({.*})\n</tool_call><", text)
        schemas = [json.loads(line)["function"] for line in tools.split("\n") if line.startswith('{"type')]
        listing, *act = (json.loads(call) for call in (calls[-2:] if picks else calls[-1:]))
        (lister,) = [schema for schema in schemas if schema["name"] == listing["name"]]
        said = text.split("<|im_start|>user\n")[1].split("<|im_end|>")[0]
        request = f" {re.sub('[,.]', ' ', said)} "
        parameters = lister["parameters"]
        sort, *filters = (name for name in parameters["properties"] if name not in parameters["required"])
        assert listing["arguments"][sort] in request  # the unit, in "lowest kg"
        spoken = "/".join(str(value) for value in listing["arguments"].values())
        for name in filters:
            kind = parameters["properties"][name]
            values = kind.get("enum", kind.get("items", {}).get("enum", ()))
            given = listing["arguments"].get(name, [])
            given = given if isinstance(given, list) else [given]
            assert set(given) <= set(values)
            assert all(value in request for value in given)
            unsaid = [value for value in values if value not in spoken]
            assert [value for value in unsaid if f" {value} " in request] == []
            named += len(given)
        if picks:
            table = text.split("<tool_response>\n")[-2].split("\n</tool_response>")[0]
            assert list(act[0]["arguments"].values()) == [table.split(" ")[0]]
    assert named > 300
