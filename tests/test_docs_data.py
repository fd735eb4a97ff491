"""The guide to data: its lines can be read, its recipes are recipes."""

import re
from pathlib import Path

import pytest
import yaml

from chat_kit import chat
from renshu.data.dialogues import read_dialogues
from renshu.data.preferences import read_labelled, read_pairs
from renshu.pipeline.recipe import Recipe

GUIDE = (Path(__file__).parent.parent / "docs/guide-data.md").read_text("utf-8")
FORMAT = chat("qwen2_5")
READERS = {
    "dialogues": (read_dialogues, 1),
    "pairs": (lambda path: read_pairs(path, FORMAT), 3),
    "thumbs": (lambda path: read_labelled(path, FORMAT), 4),
}


@pytest.mark.parametrize("kind", READERS)
def test_every_line_is_learned_from(tmp_path, kind):
    (text,) = re.findall(rf"```jsonl {kind}\n(.*?)```", GUIDE, re.S)
    path = tmp_path / "data.jsonl"
    path.write_text(text, encoding="utf-8")
    read, count = READERS[kind]
    found = read(path)
    assert (len(found.items), found.set_aside) == (count, {})


def test_the_stages_are_stages():
    examples = re.findall(r"```yaml\n(.*?)```", GUIDE, re.S)
    names = [
        [stage.name for stage in Recipe.from_dict({"env": "flights", **yaml.safe_load(text)}).stages]
        for text in examples
    ]
    assert names == [["practice", "imitate", "prefer", "thumbs"], ["thumbs"]]
