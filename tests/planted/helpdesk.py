"""Which article of the handbook answers a customer's ticket? Tickets come from a file."""

from pathlib import Path

from renshu import Environment, Tasks

ARTICLES = {
    "returns": "R1",
    "shipping": "S2",
    "payment": "P3",
    "sizes": "Z4",
    "care": "C5",
    "shops": "H6",
    "jobs": "J7",
    "stock": "K8",
}


def handbook(topic: str) -> str:
    """Number of the handbook's article on a topic.

    Args:
        topic: one word, for example returns
    """
    return ARTICLES.get(topic, "no such topic; there are: " + ", ".join(ARTICLES))


def right_article(task, trajectory) -> float:
    return float(trajectory.messages[-1].content.strip() == task["article"])


Helpdesk = Environment.from_functions(
    tools=[handbook],
    rewards=[right_article],
    success=right_article,
    tasks=Tasks.from_jsonl(
        Path(__file__).parent / "helpdesk.jsonl", split_by="prompt", shares=(0.6, 0.2, 0.2)
    ),
    system="Look up which article answers the question. Reply with its number only, such as A9.",
)
