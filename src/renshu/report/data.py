"""What a run folder tells, read from its plain files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from renshu.errors import DataError
from renshu.jsonl import read_object, read_rows
from renshu.report.charts import Bar, Series
from renshu.report.unfinished import summary_so_far

STEP = ("stage", "step")  # keys of every line of a log, and of a sample
SAMPLE = ("task", "reward", "success", "stop", "segments")
SHOWN_SEQUENCES = 7  # of tools; the rest is "other", so that each has its own colour


@dataclass(frozen=True)
class RunData:
    """A run: its summary, and one dict a line of its logs. Absent files are empty."""

    name: str
    summary: dict[str, Any]
    metrics: list[dict[str, Any]]
    samples: list[dict[str, Any]]
    findings: list[dict[str, Any]]
    settings: str
    provenance: dict[str, Any]

    @classmethod
    def read(cls, folder: str | Path) -> RunData:
        """Raises DataError, or ConfigError, if there is no run in `folder`, or a damaged one."""
        folder = Path(folder)
        if not (folder / "summary.json").is_file():
            return cls._unfinished(folder)
        summary = read_object(folder / "summary.json", ("seed", "stages", "evaluation", "tokens"))
        return cls._of(folder, summary, read_rows(folder / "metrics.jsonl", STEP))

    @classmethod
    def _unfinished(cls, folder: Path) -> RunData:
        """A run that goes on, or was broken off: with what it has told so far."""
        if not (folder / "recipe.resolved.yaml").is_file():
            raise DataError(f"{folder} holds no run: there is no recipe.resolved.yaml in it")
        failure = _object_if_there(folder / "failure.json").get("error")
        metrics = read_rows(folder / "metrics.jsonl", (*STEP, "steps"))
        return cls._of(folder, summary_so_far(folder, metrics, failure), metrics)

    @classmethod
    def _of(cls, folder: Path, summary: dict[str, Any], metrics: list[dict[str, Any]]) -> RunData:
        return cls(
            name=folder.resolve().name,
            summary=summary,
            metrics=metrics,
            samples=read_rows(folder / "trajectories" / "samples.jsonl", (*STEP, *SAMPLE)),
            findings=read_rows(folder / "findings.jsonl", (*STEP, "name", "text")),
            settings=_text(folder / "recipe.resolved.yaml"),
            provenance=_object_if_there(folder / "provenance.json"),
        )

    def of_stage(self, stage: str) -> list[dict[str, Any]]:
        return [row for row in self.metrics if row["stage"] == stage]

    def told_findings(self) -> list[str]:
        """Each kind of finding of a stage once: its first text, where, and how often it came again."""
        kinds: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
        for row in self.findings:
            # Notes on data differ, and each counts; what a step found repeats itself with other numbers.
            key = (row["stage"], row["name"], "" if row["step"] else row["text"])
            kinds.setdefault(key, []).append(row)
        told = []
        for first, *again in kinds.values():
            where = f"{first['stage']}, step {first['step']}: " if first["step"] else ""
            more = f" (and in {len(again)} later steps)" if again else ""
            told.append(f"{where}{first['text']}{more}")
        return told

    def curves(self, stage: str) -> list[Series]:
        """What a stage looked like over its steps: reward and success where it sampled, else its loss."""
        rows = self.of_stage(stage)
        named = [("reward", "reward", False), ("success", "success in training", False)]
        if not any(row.get("reward") is not None for row in rows):
            named = [("loss", "loss", False), ("accuracy", "accuracy on its data", False)]
        named.append(("dev_success", "success on dev", True))
        return [
            Series(label, [(row["step"], row[key]) for row in rows if row.get(key) is not None], dots)
            for key, label, dots in named
        ]

    def tool_sequences(self, stage: str) -> tuple[list[str], list[tuple[float, dict[str, float]]]]:
        """The commonest sequences of tools, and the share of each in the episodes of every step."""
        rows = [row for row in self.of_stage(stage) if row.get("sequences")]
        total: Counter[str] = Counter()
        for row in rows:
            total.update(row["sequences"])
        names = [name for name, _ in total.most_common(SHOWN_SEQUENCES)]
        labels = {name: name or "no tool" for name in names}
        columns = []
        for row in rows:
            episodes = sum(row["sequences"].values())
            shares = {label: row["sequences"].get(name, 0) / episodes for name, label in labels.items()}
            columns.append((float(row["step"]), {**shares, "other": 1.0 - sum(shares.values())}))
        return [*labels.values(), *(["other"] if len(total) > len(names) else [])], columns


def bars(arms: Sequence[dict[str, Any]]) -> list[Bar]:
    """The arms of one benchmark as rows of an interval chart."""
    return [
        Bar(
            name=arm["arm"],
            value=float("nan") if arm["success"] is None else arm["success"],
            low=arm["low"],
            high=arm["high"],
            note=f"n = {arm['n']}" + (f", {arm['unscored']} unscored" if arm["unscored"] else ""),
        )
        for arm in arms
    ]


def chosen_samples(samples: Sequence[dict[str, Any]], most: int = 6) -> list[dict[str, Any]]:
    """Samples spread evenly over the run, the first and the last included."""
    if len(samples) <= most:
        return list(samples)
    return [samples[round(i * (len(samples) - 1) / (most - 1))] for i in range(most)]


def _text(path: Path) -> str:
    return path.read_text("utf-8", errors="replace") if path.is_file() else ""


def _object_if_there(path: Path) -> dict[str, Any]:
    return read_object(path) if path.is_file() else {}
