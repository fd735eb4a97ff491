"""What each of several processes does in `test_train_distributed.py`: trains alone, then with the others.

Run by a launcher: `python distributed_worker.py FOLDER`. The first process writes `found.json`.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from transformers import LlamaConfig, LlamaForCausalLM

from renshu.algorithms import GrpoConfig, PpoConfig, SftConfig, grpo, ppo, sft
from renshu.engines import Sampling
from renshu.engines.choose import engine_for
from renshu.errors import OtherProcessFailed
from renshu.models import AdapterSettings
from renshu.models.adapters import add_adapter
from renshu.models.critic import ValueHead
from renshu.models.reference import reference_of
from renshu.models.sharded import whole, whole_tensor
from renshu.seeding import generator
from renshu.train import Trainer, checkpoint
from renshu.train.joining import joined
from renshu.train.processes import Processes, Sharded
from renshu.tree import token_logprobs
from renshu.types import Group, Row, Scored, Segment, Stop, Task, Trajectory

STEPS = 5


def tiny() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval()


def adapted() -> Any:
    model = tiny()
    torch.manual_seed(1)
    return add_adapter(model, AdapterSettings(rank=2, alpha=4))


def rows(step: int) -> list[Row]:
    """Five of different lengths: the processes do not have equally much to do."""
    draw = generator("rows", step)
    return [
        Row((1, 2, *(draw.randrange(3, 30) for _ in range(length))), (False,) * 2 + (True,) * length)
        for length in (12, 3, 4, 3, 4)
    ]


def rollouts(model: Any, step: int) -> list[Group]:
    """Five groups of four, two turns each, of fixed tokens; log-probs as before training."""
    draw = generator("rollouts", step)
    groups = []
    for number in range(5):
        task = Task(f"task/{step}/{number}")
        played = []
        for _ in range(4):
            first, tool, second = ([draw.randrange(3, 30) for _ in range(n)] for n in (2, 3, 2 + number))
            ids = (1, 2, number + 3, *first, *tool, *second)
            trained = (False,) * 3 + (True,) * 2 + (False,) * 3 + (True,) * len(second)
            said = token_logprobs(model, [Row(ids, trained)]).logprobs.tolist()
            segments = (
                Segment(ids[:3]),
                Segment(tuple(first), True, tuple(said[:2])),
                Segment(tuple(tool)),
                Segment(tuple(second), True, tuple(said[2:])),
            )
            score = Scored(draw.random())
            played.append(Trajectory(task, segments, (), Stop.ANSWERED, score))
        groups.append(Group(task, tuple(played)))
    return groups


@torch.no_grad()
def replayed() -> list[list[Group]]:
    model = tiny()
    return [rollouts(model, step) for step in range(STEPS)]


def trainer_of(name: str, model: Any, processes: Processes | None) -> Trainer[Any]:
    options: dict[str, Any] = {"steps": STEPS} | ({"processes": processes} if processes else {})
    shared = {"learning_rate": 1e-2, "weight_decay": 0.1, "schedule": "linear"}
    if name == "sft":  # micro-batches of a row: accumulation
        return Trainer(model, sft.algorithm(SftConfig(token_budget=9, **shared)), **options)
    if name == "ppo":
        config = PpoConfig(token_budget=60, iterations=2, **shared)
        algorithm = ppo.algorithm(config, temperature=1.0)
        torch.manual_seed(2)
        options["critic"] = ValueHead(model)
    else:
        config = GrpoConfig(token_budget=60, minibatches=2, iterations=2, beta=0.1, **shared)
        algorithm = grpo.algorithm(config, temperature=1.0, max_tokens=8)
    return Trainer(model, algorithm, reference=reference_of(model), **options)


def play(trainer: Trainer[Any], batches: Sequence[Any], first: int = 0) -> list[dict[str, float]]:
    return [trainer.step(step, batch)[0] for step, batch in enumerate(batches, first)]


def weights(trainer: Trainer[Any]) -> dict[str, torch.Tensor]:
    return {name: whole_tensor(p.detach()).clone() for name, p in trainer.trained.items()}


def differences(found: Sequence[dict[str, float]], expected: Sequence[dict[str, float]]) -> dict[str, float]:
    """The largest difference of every metric; what is counted by processes has to be equal, too."""
    apart = {"tokens_computed"}  # fewer prefixes are shared
    assert [metrics.keys() for metrics in found] == [metrics.keys() for metrics in expected]
    names = found[0].keys() - apart
    return {name: max(abs(a[name] - b[name]) for a, b in zip(found, expected, strict=True)) for name in names}


def compare(
    name: str, make: Any, batches: Sequence[Any], processes: Processes, folder: Path
) -> dict[str, Any]:
    """Train alone and together; after three steps also change from one to the other by a checkpoint."""
    alone, together = trainer_of(name, make(), None), trainer_of(name, make(), processes)
    passes = [counted(alone), counted(together)]
    begun = weights(alone)
    expected = play(alone, batches)
    found = play(together, batches[:3])
    checkpoint.save(folder, 3, together.trained, together.optimiser, {}, processes=processes)
    found += play(together, batches[3:], first=3)
    once = trainer_of(name, make(), None)
    checkpoint.load(folder / "checkpoint-3", once.trained, once.optimiser)
    once.step(3, batches[3])
    if processes.leads:
        checkpoint.save(folder, 4, once.trained, once.optimiser, {})
    processes.any(False)  # it is written
    again = trainer_of(name, make(), processes)
    checkpoint.load(folder / "checkpoint-4", again.trained, again.optimiser)
    again.step(4, batches[4])
    wanted = weights(alone)

    def gap(trainer: Trainer[Any]) -> float:
        return max((weight - wanted[n]).abs().max().item() for n, weight in weights(trainer).items())

    of_policy = [p for n, p in together.trained.items() if not n.startswith("critic.")]
    return {
        "sharded": all(isinstance(p, DTensor) for p in of_policy),
        "moved": max((wanted[n] - before).abs().max().item() for n, before in begun.items()),
        "together": gap(together),
        "again": gap(again),
        "metrics": differences(found, expected),
        "passes": [len(passes[0]), processes.each(lambda: len(passes[1]))],
    }


def counted(trainer: Trainer[Any]) -> list[int]:
    """Gets an element at every pass with a gradient."""
    passes: list[int] = []

    def count(*_: Any) -> None:
        if torch.is_grad_enabled():
            passes.append(1)

    trainer.model.register_forward_pre_hook(count)
    return passes


def samples(processes: Processes) -> bool:
    """Whether an engine says the same while weights are whole, however often each process asks."""

    async def reply(engine: Any, seed: int) -> list[int]:
        session = engine.open((1, 2, 3), seed=seed)
        generated = await session.generate(Sampling(max_tokens=4 + 3 * processes.rank))
        session.close()
        return list(generated.segment.ids)

    model = tiny()
    expected = engine_for(copy.deepcopy(model))
    wanted = expected.run([reply(expected, seed) for seed in range(3)])
    engine = engine_for(model)
    wrapped = processes.wrap(model)
    token_logprobs(wrapped, [Row((1, 2, 3), (False, True, True))]).logprobs.sum().backward()
    engine.refresh()
    with whole(model):
        found = engine.run([reply(engine, seed) for seed in range(3)])
    token_logprobs(wrapped, [Row((1, 2, 3), (False, True, True))]).logprobs.sum().backward()
    return all(processes.each(lambda: found == wanted))


def failing(processes: Processes) -> str:
    """What a process hears when only the second one fails."""
    try:
        processes.each(lambda: 1 // (1 - processes.rank))
    except OtherProcessFailed as error:
        return str(error)
    except ZeroDivisionError:
        return "own"
    return "nothing"


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    groups = replayed()
    batches = {"sft": [rows(step) for step in range(STEPS)], "grpo": groups, "ppo": groups}
    found: dict[str, Any] = {}
    with joined("ddp", "cpu") as first:
        for processes, name, make in (
            (first, "sft", tiny),
            (first, "grpo", adapted),
            (first, "ppo", tiny),
            (Sharded(), "sft", tiny),
            (Sharded(), "grpo", tiny),
            (Sharded(), "ppo", adapted),
        ):
            case = f"{type(processes).__name__} {name}"
            found[case] = compare(name, make, batches[name], processes, folder / case)
        found["samples"] = [samples(first), samples(Sharded())]
        found["divided"] = first.divided(list("abcab"), lambda own: [(c, first.rank) for c in own], key=str)
        found["failing"] = first.each(partial(failing, first))
        found["led"] = first.led(lambda: first.rank), first.total(first.rank + 1), first.any(first.rank == 1)
    if first.leads:
        (folder / "found.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
