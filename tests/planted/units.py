"""A unit converter from functions."""

import re

from renshu import Environment, Tasks

PER_METRE = {"feet": 3.28084, "inches": 39.3701, "yards": 1.09361}


def factor(unit: str) -> float:
    """How many of a unit make one metre.

    Args:
        unit: feet, inches or yards
    """
    return PER_METRE[unit]


def draw(random):
    unit, metres = random.choice(list(PER_METRE)), random.randint(2, 400)
    return {
        "prompt": f"How many {unit} are {metres} metres? Round to a whole number.",
        "expected": round(metres * PER_METRE[unit]),
    }


def converted(task, trajectory) -> float:
    found = re.search(r"<answer>\s*(\d+)\s*</answer>", trajectory.messages[-1].content or "")
    return float(bool(found) and int(found.group(1)) == task["expected"])


Units = Environment.from_functions(
    tools=[factor],
    rewards=[converted],
    success=converted,
    tasks=Tasks.generated(draw, train=400, dev=50, test=100, name="units"),
    system="You convert units. Look the factor up. Give the result as <answer>number</answer>.",
)
