"""What a run writes at every step: metrics, findings, trajectories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from renshu.chat import ChatFormat
from renshu.evaluation.records import outcome_record, trajectory_record
from renshu.pipeline.recipe import Stage
from renshu.pipeline.run_folder import RunFolder
from renshu.rollout import rollout_metrics, tool_sequences
from renshu.tools import abandoned_tools
from renshu.train import MetricsLog, Snapshot
from renshu.types import Group, Scored, Trajectory


class Recorder:
    """Writes into a run folder, and counts the tokens of training."""

    def __init__(self, run: RunFolder, chat: ChatFormat) -> None:
        self.run, self.chat = run, chat
        self.computed = self.naive = 0

    @cached_property
    def metrics(self) -> MetricsLog:
        return MetricsLog(self.run.file("metrics.jsonl"))

    def notes(self, texts: Sequence[str], stage: str = "") -> None:
        """Write what is to be known before the first step, of the run or a stage, into `findings.jsonl`."""
        rows = [{"stage": stage, "step": 0, "name": "data", "text": text} for text in texts]
        if rows:
            self.run.append_lines("findings.jsonl", rows)

    def step(self, stage: Stage, snapshot: Snapshot, dev_success: float | None) -> dict[str, Any]:
        """Write what a step has to tell; returns its line of `metrics.jsonl`."""
        record: dict[str, Any] = {"stage": stage.name, "step": snapshot.step, "steps": snapshot.steps}
        if stage.samples:
            groups: Sequence[Group] = snapshot.batch
            trajectories = [trajectory for group in groups for trajectory in group.trajectories]
            record |= {
                **rollout_metrics(groups, compared=stage.within_groups),
                "sequences": dict(tool_sequences(trajectories)),
            }
            record["abandoned_tools"] = abandoned_tools()  # a timeout cannot end their threads
            self._trajectories(stage, snapshot.step, groups)
        record |= snapshot.metrics
        if dev_success is not None:
            record["dev_success"] = dev_success
        self.metrics.append(record)
        self.computed += int(snapshot.metrics["tokens_computed"])
        self.naive += int(snapshot.metrics["tokens_naive"])
        findings = [
            {"stage": stage.name, "step": snapshot.step, "name": f.name, "text": f.text}
            for f in snapshot.findings
        ]
        if findings:
            self.run.append_lines("findings.jsonl", findings)
        return record

    def looked(self, stage: str, step: int, dev_success: float) -> None:
        """A look at dev that came after its step was written."""
        self.metrics.amend(
            lambda row: (row["stage"], row["step"]) == (stage, step), {"dev_success": dev_success}
        )

    def stage_ends(self, stage: Stage) -> str | None:
        """Write a finding, and return its text, if most steps of a stage had nothing to learn from."""
        steps = [row for row in self.metrics.read() if row["stage"] == stage.name]
        idle = sum("gradient_norm" not in row for row in steps)  # no update was made
        if 2 * idle <= len(steps):
            return None
        text = (
            f"{idle} of {len(steps)} steps of {stage.name} had nothing to learn from, and changed no weight: "
            "rollouts must differ in reward or success; warm up first, or make the tasks easier"
        )
        row = {"stage": stage.name, "step": len(steps), "name": "idle", "text": text}
        self.run.append_lines("findings.jsonl", [row])
        return text

    def forget_after(self, steps: Mapping[str, int]) -> None:
        """Remove what was written about later steps. steps: how many count, by stage; of others none do."""

        def counts(row: Mapping[str, Any]) -> bool:
            if not row["stage"]:  # notes on data, of before the first stage
                return True
            return bool(row["step"] <= steps.get(row["stage"], 0) > 0)

        for name in ("metrics.jsonl", "findings.jsonl", "trajectories/samples.jsonl"):
            if (self.run.path / name).is_file():
                MetricsLog(self.run.path / name).keep(counts)
        for file in self.run.path.glob("trajectories/*/step-*.jsonl"):
            if int(file.stem.removeprefix("step-")) > steps.get(file.parent.name, 0):
                file.unlink()

    def _trajectories(self, stage: Stage, step: int, groups: Sequence[Group]) -> None:
        rows = [
            {**trajectory_record(trajectory), "template": self.chat.fingerprint}  # whose tokens they are
            for group in groups
            for trajectory in group.trajectories
        ]
        self.run.append_lines(f"trajectories/{stage.name}/step-{step:05}.jsonl", rows)
        shown = [self._sample(stage, step, trajectory) for trajectory in best_and_worst(groups[0])]
        self.run.append_lines("trajectories/samples.jsonl", shown)

    def _sample(self, stage: Stage, step: int, trajectory: Trajectory) -> dict[str, Any]:
        """The outcome with every token as text, for the report."""
        segments = [
            {"sampled": segment.sampled, "pieces": pieces(self.chat.tokenizer, segment.ids)}
            for segment in trajectory.segments
        ]
        return {"stage": stage.name, "step": step, **outcome_record(trajectory), "segments": segments}


def best_and_worst(group: Group) -> list[Trajectory]:
    """The trajectories of highest and of lowest reward; one if these are equal or nothing is scored."""
    scored = [t for t in group.trajectories if isinstance(t.score, Scored)]
    if not scored:
        return list(group.trajectories[:1])
    best, worst = max(scored, key=_reward), min(scored, key=_reward)
    return [best] if _reward(best) == _reward(worst) else [best, worst]


def _reward(trajectory: Trajectory) -> float:
    assert isinstance(trajectory.score, Scored)
    return trajectory.score.value


def pieces(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """The text of each token. A character spread over several tokens is shown at the last of them."""
    texts: list[str] = []
    while len(texts) < len(ids):
        start = len(texts)
        for end in range(start + 1, min(start + 4, len(ids)) + 1):  # UTF-8 has at most four bytes a character
            text = tokenizer.decode(list(ids[start:end]), skip_special_tokens=False)
            if "\ufffd" not in text:
                texts += [""] * (end - start - 1) + [text]
                break
        else:
            texts.append("\ufffd")
    return texts
