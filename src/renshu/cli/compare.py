"""`renshu compare RUN`, `renshu compare RUN:base RUN OTHER MODEL api:MODEL@URL`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from renshu.cli.common import AtOnce, Keep, KeyVariables, finite, refuse_without_api

Targets = Annotated[
    list[str],
    typer.Argument(
        help="RUN (all its arms, if alone), RUN:base, RUN:few-shot, RUN:STAGE, MODEL, api:MODEL@URL."
    ),
]
Env = Annotated[str | None, typer.Option(help="flights, repairs, file.py:Class; default: the first run's.")]
Tasks = Annotated[
    int | None, typer.Option(min=1, help="Held-out tasks; default: as in the first run, else 300.")
]
MaxTokens = Annotated[
    int | None, typer.Option(min=1, help="Sampled tokens of an episode; default: as in the first run.")
]
Samples = Annotated[
    int | None, typer.Option(min=1, help="Also try every task so often, for pass^k and pass@k.")
]
Temperature = Annotated[
    float | None, typer.Option(min=0.0, callback=finite, help="Of --samples and --task; default: 1.")
]
OneTask = Annotated[int | None, typer.Option(min=0, help="Only test task number N, asked --times times.")]
Times = Annotated[int | None, typer.Option(min=1, help="With --task; default: 100.")]
PriceIn = Annotated[
    float | None, typer.Option(min=0.0, callback=finite, help="Dollars per million prompt tokens.")
]
PriceOut = Annotated[
    float | None, typer.Option(min=0.0, callback=finite, help="Dollars per million sampled tokens.")
]
PriceHour = Annotated[
    float | None,
    typer.Option(min=0.0, callback=finite, help="Dollars per hour of this machine; arms are then timed."),
]
Price = Annotated[
    list[str] | None,
    typer.Option(help="ARM=IN/OUT or ARM=IN/OUT/CACHED: dollars per million tokens of one arm."),
]
Page = Annotated[
    Path | None, typer.Option(help="Write the page here; default: compare.html in the first run.")
]


def compare(
    targets: Targets,
    env: Env = None,
    tasks: Tasks = None,
    max_tokens: MaxTokens = None,
    samples: Samples = None,
    temperature: Temperature = None,
    task: OneTask = None,
    times: Times = None,
    price_in: PriceIn = None,
    price_out: PriceOut = None,
    price_hour: PriceHour = None,
    price: Price = None,
    api_key_env: KeyVariables = None,
    api_at_once: AtOnce = None,
    keep: Keep = None,
    html: Page = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Compare arms on the same held-out tasks: intervals, paired tests, pass^k, tokens and cost."""

    from renshu.cli.common import quiet
    from renshu.cli.show import TerminalWatcher
    from renshu.evaluation import Prices, Tries
    from renshu.pipeline.compare import compare_targets, repeat_task
    from renshu.pipeline.endpoints import Access
    from renshu.places import require_writable
    from renshu.train.progress import Terminal

    quiet()
    refuse_without_api(targets, api_key_env, api_at_once, keep)
    common: dict[str, Any] = {
        "env": env,
        "max_tokens": max_tokens,
        "access": Access.of(targets, api_key_env or (), api_at_once, keep or _keep_in(targets)),
        "watcher": TerminalWatcher(Terminal(quiet=as_json)),
    }
    prices = {"--price-in": price_in, "--price-out": price_out, "--price-hour": price_hour}
    own = dict(map(_price, price or ()))
    heat = 1.0 if temperature is None else temperature
    if task is not None:
        useless = {"--tasks": tasks, "--samples": samples, "--html": html, "--price": price, **prices}
        _refuse(useless, "--task asks one task")
        _tell(repeat_task(targets, task, times=times or 100, temperature=heat, **common), as_json)
        return
    _refuse({"--times": times}, "it says how often --task is asked")
    if samples is None:
        _refuse({"--temperature": temperature}, "it is that of --samples or --task")
    page = html or _page_of(targets[0])
    if page is not None:
        require_writable(page, "--html")
    found = compare_targets(
        targets,
        tasks=tasks,
        tries=None if samples is None else Tries(k=samples, temperature=heat),
        prices=Prices(*prices.values()),
        own_prices={
            name: Prices(told, sampled, None, cached) for name, (told, sampled, cached) in own.items()
        },
        **common,
    )
    _tell(found, as_json)
    _write_page(found, page)


def _tell(found: dict[str, Any], as_json: bool) -> None:
    from renshu.cli.tables import show_comparison, show_repeated

    if as_json:
        print(json.dumps(found, ensure_ascii=False))
    elif "times" in found:
        show_repeated(found)
    else:
        show_comparison(found)


def _write_page(found: dict[str, Any], path: Path | None) -> None:
    from renshu.report import build_comparison

    if path is not None:
        print(f"page: {build_comparison(found, path)}", file=sys.stderr)


def _page_of(target: str) -> Path | None:
    run = _run_of(target)
    return None if run is None else run / "compare.html"


def _keep_in(targets: list[str]) -> Path | None:
    """A folder in the first run that is compared, None without a run."""
    from renshu.pipeline.endpoints import FOLDER

    runs = [run for run in map(_run_of, targets) if run is not None]
    return runs[0] / FOLDER if runs else None


def _run_of(target: str) -> Path | None:
    from renshu.pipeline.arms import split_target
    from renshu.pipeline.run_folder import is_run

    place, _ = split_target(target)
    return Path(place) if is_run(place) else None


def _price(text: str) -> tuple[str, tuple[float, float, float | None]]:
    """An arm's name, and its prices of tokens: of prompts, sampled, cached. Raises a usage error."""
    name, _, told = text.rpartition("=")
    parts = told.split("/")
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        numbers = []
    if not name or len(numbers) not in (2, 3):
        raise typer.BadParameter(
            f"--price {text}: expected ARM=IN/OUT or ARM=IN/OUT/CACHED, e.g. gpt-x=2.5/10"
        )
    for number in numbers:
        finite(number)
    return name, (numbers[0], numbers[1], numbers[2] if len(numbers) == 3 else None)


def _refuse(given: dict[str, Any], reason: str) -> None:
    """Raise a usage error for options that would do nothing."""
    useless = [name for name, value in given.items() if value is not None]
    if useless:
        raise typer.BadParameter(f"{', '.join(useless)} would do nothing here: {reason}")
