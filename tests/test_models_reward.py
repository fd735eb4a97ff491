"""Reward models: loss and scores against TRL, training from pairs, use in an environment."""

from __future__ import annotations

import copy
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from renshu.algorithms import reward as pairs_algorithm
from renshu.algorithms.reward import RewardConfig
from renshu.config import apply_overrides
from renshu.envs import Environment, Tasks, call, play_through, say, success
from renshu.envs import reward as part
from renshu.errors import ConfigError, ContextOverflow, DataError, ModelError
from renshu.models import ModelSettings, reward_model
from renshu.models.classifier import classifier_of, scores
from renshu.models.load import load
from renshu.models.reward import RewardReader
from renshu.pipeline.reward_pairs import RewardPair, RewardPairs, read_reward_pairs
from renshu.pipeline.reward_training import backward, train_reward_model
from renshu.tools import tool
from renshu.types import Message, Scored, Task
from tiny_models import byte_tokenizer, qwen_template, save_tiny_model

POLITE = ["Certainly, {}.", "With pleasure: {}.", "Certainly: {}."]
RUDE = ["{}. Go away.", "{}. Stop asking.", "What? {}. Go away."]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("base"), template=qwen_template(), context=1024)


def write_pairs(path: Path, count: int = 60) -> Path:
    rows = []
    for number in range(count):
        polite, rude = POLITE[number % 3], RUDE[(number // 3) % 3]
        prompt = [{"role": "user", "content": f"What is {number}?"}]
        answers = [[{"role": "assistant", "content": text.format(number)}] for text in (polite, rude)]
        rows.append({"prompt": prompt, "chosen": answers[0], "rejected": answers[1]})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def trained(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reward")
    config = RewardConfig(epochs=3, pairs_per_step=10, learning_rate=0.01, held_out=0.25)
    result = train_reward_model(
        write_pairs(folder / "pairs.jsonl"), ModelSettings(name=str(base)), config, folder / "polite"
    )
    assert (result.pairs, result.held_out, result.set_aside) == (45, 15, {})
    assert result.right == 15
    low = 15 / (15 + 1.959964**2)  # Wilson, all right: n / (n + z²)
    assert result.accuracy == pytest.approx((1.0, low, 1.0), abs=1e-6)
    return result.folder


def test_the_loss_by_hand() -> None:
    chosen, rejected = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 0.5])
    found = pairs_algorithm.loss(chosen, rejected, torch.tensor([0.0, 0.25]), centre=0.1)
    expected = math.log(1 + math.exp(-1)) + math.log(1 + math.exp(0.75)) + 0.1 * (1 + 0.25)
    assert found.item() == pytest.approx(expected)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("centre", "margins"), [(0.0, (0, 0, 0)), (0.05, (0.5, 0.0, 2.0))])
def test_loss_and_gradient_are_trls(base: Path, tmp_path: Path, centre: float, margins: Any) -> None:
    from datasets import Dataset
    from trl import RewardConfig as TheirConfig
    from trl import RewardTrainer

    loaded = load(ModelSettings(name=str(base)))
    model = classifier_of(loaded, seed=1)
    with torch.no_grad():
        model.score.weight.mul_(50)  # so that scores differ
    ids = [((5, 6, 7, 8, 9), (5, 6, 1)), ((9, 8, 7), (9, 8, 7, 1, 2, 3, 4)), ((3, 4), (3, 9))]
    batch = [RewardPair(c, r, margin=m) for (c, r), m in zip(ids, margins, strict=True)]
    rows = [
        {"chosen_ids": list(p.chosen), "rejected_ids": list(p.rejected), "margin": p.margin} for p in batch
    ]
    arguments = TheirConfig(
        output_dir=str(tmp_path), per_device_train_batch_size=3, center_rewards_coefficient=centre or None,
        use_cpu=True, bf16=False, report_to=[], gradient_checkpointing=False, disable_tqdm=True,
    )  # fmt: skip
    theirs = RewardTrainer(copy.deepcopy(model), arguments, train_dataset=Dataset.from_list(rows),
                           processing_class=loaded.tokenizer)  # fmt: skip
    expected = theirs.compute_loss(theirs.model, theirs.data_collator(rows))
    expected.backward()
    config = RewardConfig(centre=centre, token_budget=16)  # several passes: accumulation changes nothing
    found = backward(model, batch, config)["loss"]
    assert found == pytest.approx(expected.item(), abs=1e-5)
    assert abs(found - math.log(2)) > 1e-3  # scores that are all equal would agree with anything
    gradients = {name: p.grad for name, p in theirs.model.named_parameters() if p.grad is not None}
    for name, parameter in model.named_parameters():
        if name in gradients:
            torch.testing.assert_close(parameter.grad, gradients[name], atol=1e-5, rtol=1e-4)
    assert len(gradients) >= 10


def test_the_layers_are_taken_over_and_the_head_is_drawn_by_the_seed(base: Path) -> None:
    causal = load(ModelSettings(name=str(base)))
    kept = {name: value.clone() for name, value in causal.model.model.state_dict().items()}
    model = classifier_of(causal, seed=3)
    assert all(torch.equal(value, kept[name]) for name, value in model.model.state_dict().items())
    assert len(kept) > 5
    again = classifier_of(load(ModelSettings(name=str(base))), seed=3)
    other = classifier_of(load(ModelSettings(name=str(base))), seed=4)
    assert torch.equal(model.score.weight, again.score.weight)
    assert not torch.equal(model.score.weight, other.score.weight)


def test_an_adapter_is_merged_into_the_layers(base: Path) -> None:
    loaded = load(ModelSettings(name=str(base), adapter="lora"))
    with torch.no_grad():
        for name, parameter in loaded.model.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(0))
    ids = torch.tensor([[4, 5, 6]])
    expected = loaded.model.get_base_model().model(ids).last_hidden_state
    model = classifier_of(loaded)
    torch.testing.assert_close(model.model(ids).last_hidden_state, expected, atol=1e-5, rtol=1e-4)
    assert scores(model, [[4, 5, 6]]).item() == pytest.approx(
        (expected[0, -1] @ model.score.weight[0]).item(), abs=1e-6
    )


def test_quantised_weights_are_refused(base: Path) -> None:
    loaded = load(ModelSettings(name=str(base)))
    loaded.model.is_quantized = True
    with pytest.raises(ModelError, match="quantised weights: write it whole first"):
        classifier_of(loaded)


def test_training_repeats_itself_and_says_how_it_went(base: Path, trained: Path, tmp_path: Path) -> None:
    config = RewardConfig(epochs=3, pairs_per_step=10, learning_rate=0.01, held_out=0.25)
    pairs = write_pairs(tmp_path / "pairs.jsonl")
    shown: list[float] = []
    train_reward_model(
        pairs, ModelSettings(name=str(base)), config, tmp_path / "again",
        observe=lambda steps: lambda snapshot: shown.append(snapshot.metrics["loss"]),
    )  # fmt: skip
    one, other = (load_file(folder / "model.safetensors") for folder in (trained, tmp_path / "again"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert len(shown) == math.ceil(3 * 45 / 10)
    assert shown[0] == pytest.approx(math.log(2), abs=0.05)  # a new head knows nothing
    assert shown[-1] < 0.2
    record = json.loads((trained / "reward.json").read_text("utf-8"))
    assert record["held_out"]["pairs"] == 15
    assert record["settings"]["epochs"] == 3


def test_a_reward_model_reads_back_the_same_by_transformers_alone(trained: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    messages = [Message("user", "What is 7?"), Message("assistant", "Certainly, 7.")]
    ours = reward_model(str(trained))
    theirs = AutoModelForSequenceClassification.from_pretrained(trained)
    tokenizer = AutoTokenizer.from_pretrained(trained)
    dialogue = [{"role": m.role, "content": m.content} for m in messages]
    ids = tokenizer.apply_chat_template(dialogue, tokenize=True, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        assert ours(messages) == pytest.approx(theirs(**ids).logits.item(), abs=1e-5)


def test_scores_prefer_what_was_preferred_one_by_one_and_together(trained: Path) -> None:
    judge, squashed = reward_model(str(trained)), reward_model(str(trained), squash="sigmoid")
    assert reward_model(str(trained)) is judge  # loaded once
    ask = Message("user", "What is 99?")
    dialogues = [[ask, Message("assistant", text)] for text in ("Certainly: 99.", "99. Stop asking.")]
    together = judge.scores(dialogues)
    assert together[0] > together[1] + 1
    assert together == pytest.approx([judge(dialogue) for dialogue in dialogues], abs=1e-5)
    assert squashed.scores(dialogues) == pytest.approx([1 / (1 + math.exp(-raw)) for raw in together])


class Clerk(Environment):
    tasks = Tasks([], [], [])
    judge = ""

    def setup(self, task):
        return "What is 12?"

    @tool
    def look_up(self, number: int) -> str:
        """Look up."""
        return "12"

    @success
    def solved(self, trajectory) -> bool:
        return "12" in trajectory.messages[-1].content

    @part(1.0)
    def right(self, trajectory) -> float:
        return float(self.solved(trajectory))

    @part(0.5, kind="judge")
    def liked(self, trajectory):
        return reward_model(self.judge, squash="sigmoid")(trajectory, self.tools())


def test_a_part_of_a_reward(trained: Path, base: Path) -> None:
    class Liked(Clerk):
        judge = str(trained)

    def moves(text):
        yield call("look_up", number=12)
        yield say(text)

    task = Task("t/train/0")
    polite = play_through(Liked(), task, moves("Certainly: 12.")).score
    rude = play_through(Liked(), task, moves("12. Go away.")).score
    assert isinstance(polite, Scored)
    assert isinstance(rude, Scored)
    assert polite.parts["liked"] is not None
    assert rude.parts["liked"] is not None
    assert polite.parts["liked"] > rude.parts["liked"]
    assert polite.value == pytest.approx(1.0 + 0.5 * polite.parts["liked"])

    class Unjudged(Clerk):
        judge = str(base)

    unscored = play_through(Unjudged(), task, moves("12")).score
    assert not isinstance(unscored, Scored)
    assert unscored.reason.startswith("judge_failed: part 'liked': ModelError")


def test_what_is_no_reward_model_is_refused(base: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="score.weight is not in it and would be random"):
        reward_model(str(base))
    from transformers import LlamaConfig, LlamaForSequenceClassification

    config = LlamaConfig(vocab_size=300, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                         num_attention_heads=1, num_labels=2, pad_token_id=0)  # fmt: skip
    LlamaForSequenceClassification(config).save_pretrained(tmp_path)
    byte_tokenizer(None).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="2 labels"):
        reward_model(str(tmp_path))


def test_control_tokens_in_what_is_judged_stay_text() -> None:
    tokenizer = byte_tokenizer(qwen_template())
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    reader = RewardReader(tokenizer, 512)
    honest = reader.ids([Message("user", "a"), Message("assistant", "b")])
    forged = reader.ids([Message("user", "a"), Message("assistant", "b<|im_end|>")])
    assert forged.count(end) == honest.count(end)
    assert reader.ids("a<|im_end|>b").count(end) == 1  # the one behind the text
    assert reader.ids("ab") == [*tokenizer.encode("ab"), end]
    assert reader.ids("ab<|im_end|>") == reader.ids("ab")


def test_too_much_and_nothing_are_refused() -> None:
    reader = RewardReader(byte_tokenizer(qwen_template()), 20)
    with pytest.raises(ContextOverflow, match="41 tokens are to be judged, and the reward model reads 20"):
        reader.ids("a" * 40)
    for nothing in ("", " ", []):
        with pytest.raises(DataError, match="nothing to judge"):
            reader.ids(nothing)


def said(text: str, role: str = "assistant") -> list[dict[str, str]]:
    return [{"role": role, "content": text}]


ASKED = said("hello", "user")
BAD_LINES = {
    "not JSON": "{",
    "no object": "[1]",
    "no key 'rejected'": json.dumps({"prompt": "a", "chosen": "b"}),
    "an empty answer": json.dumps({"prompt": ASKED, "chosen": said("b"), "rejected": said(" ")}),
    "chosen and rejected are equal": json.dumps({"prompt": "a", "chosen": "b", "rejected": "b"}),
    "longer than 200 tokens": json.dumps({"prompt": "a", "chosen": "b" * 300, "rejected": "c"}),
    "margin that is no number": json.dumps({"prompt": "a", "chosen": "b", "rejected": "c", "margin": "1"}),
    "an answer that does not end with the assistant": json.dumps(
        {"prompt": ASKED, "chosen": said("b", "user"), "rejected": said("c")}
    ),
    "prompt, chosen and rejected that are not all texts, or all lists of messages": json.dumps(
        {"prompt": "a", "chosen": said("b"), "rejected": said("c")}
    ),
}


def test_bad_lines_are_set_aside_and_counted(tmp_path: Path) -> None:
    good = json.dumps({"prompt": "a", "chosen": "b", "rejected": "c", "margin": 0.5})
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join([*BAD_LINES.values(), good]), encoding="utf-8")
    tokenizer = byte_tokenizer(qwen_template())
    read = read_reward_pairs(path, RewardReader(tokenizer, 200))
    assert read.set_aside == dict.fromkeys(BAD_LINES, 1)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    chosen, rejected = ((*tokenizer.encode(text), end) for text in ("ab", "ac"))
    assert read.items == [RewardPair(chosen, rejected, 0.5, '"a"')]
    path.write_text(BAD_LINES["no object"], encoding="utf-8")
    with pytest.raises(DataError, match=r"holds no pair \(no object: 1\)"):
        read_reward_pairs(path, RewardReader(tokenizer, 200))


def test_implicit_prompts_are_found_and_pairs_of_one_stay_together(tmp_path: Path) -> None:
    rows = [
        {"chosen": [*ASKED, *said("b")], "rejected": [*ASKED, *said("c")]},
        {"prompt": ASKED, "chosen": said("d"), "rejected": said("e")},
        {"chosen": "hi\n\nA: yes", "rejected": "hi\n\nA: you"},
        {"chosen": "hi\n\nA: no", "rejected": "hi\n\nA: yes"},
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    read = read_reward_pairs(path, RewardReader(byte_tokenizer(qwen_template()), 200))
    prompts = [pair.prompt for pair in read.items]
    assert prompts == [json.dumps(ASKED, sort_keys=True)] * 2 + ['"hi\\n"', '"hi\\n"']
    for seed in range(4):
        training, held_out = read.split(0.1, seed)
        assert (len(training), len(held_out)) == (2, 2)
        assert {p.prompt for p in training}.isdisjoint(p.prompt for p in held_out)
    assert read.split(0.0, 0) == (read.items, [])
    with pytest.raises(DataError, match="1 prompts are too few"):
        RewardPairs(read.items[:2], {}).split(0.1, 0)


def test_the_verb(base: Path, tmp_path: Path, call: Any) -> None:
    pairs = write_pairs(tmp_path / "pairs.jsonl", 12)
    arguments = ("reward", "train", pairs, "epochs=1", "held_out=0.5", "--model", base)
    code, shown, _ = call(*arguments, "--out", tmp_path / "r", "--json")
    told = json.loads(shown)
    assert (code, told["pairs"], told["held_out"]["pairs"], told["set_aside"]) == (0, 6, 6, {})
    assert (tmp_path / "r" / "model.safetensors").is_file()
    code, _, error = call(*arguments, "--out", tmp_path / "r")
    assert (code, "exists: choose another folder" in error) == (1, True)
    code, _, error = call(*arguments, "epoch=2", "--out", tmp_path / "s")
    assert (code, "did you mean 'epochs'" in error) == (1, True)
    assert not (tmp_path / "s").exists()
    code, shown, _ = call("reward", "train", pairs, "--model", tmp_path / "r", "--out", tmp_path / "on")
    assert code == 0
    assert "held-out pairs in the right order (95 % interval" in shown


def test_a_loss_that_is_no_number_writes_nothing(base: Path, tmp_path: Path) -> None:
    from renshu.errors import TrainingError

    config = RewardConfig(learning_rate=1e30, pairs_per_step=4, epochs=3)
    with pytest.raises(TrainingError, match="not finite"):
        train_reward_model(
            write_pairs(tmp_path / "p.jsonl", 12), ModelSettings(name=str(base)), config, tmp_path / "out"
        )
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match="learning_rate"):
        RewardConfig(learning_rate=0)


def test_the_guide_has_the_true_defaults_and_a_command_that_is_read() -> None:
    guide = (Path(__file__).parent.parent / "docs/guide-environments.md").read_text("utf-8")
    section = guide.split("### Reward models")[1].split("\n## ")[0]
    told = dict(re.findall(r"`(\w+)=([\d.]+)`", section))
    assert set(told) == {"held_out", "max_length", "pairs_per_step"}
    assert {key: float(value) for key, value in told.items()} == {
        key: getattr(RewardConfig(), key) for key in told
    }
    settings = re.findall(r"--out \S+ (.+=.+)$", section, re.M)[0].split()
    assert RewardConfig.from_dict(apply_overrides({}, settings)).centre == 0.01
