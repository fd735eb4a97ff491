"""A library's members: two tools, one of them async."""

from renshu import Environment, Tasks

PLANS = ("basic", "family", "student")


def _tasks(random):
    number = random.randint(1000, 9999)
    return {
        "prompt": f"Which plan has member {number}? Answer with one word.",
        "plan": PLANS[number % 3],
        "number": number,
    }


def find_member(number: int) -> dict:
    """Name and plan of a member."""
    return {"name": "member " + str(number), "plan": PLANS[number % 3]}


async def fees(plan: str) -> int:
    """What a plan costs per month, in euros."""
    return {"basic": 5, "family": 12, "student": 3}[plan]


def said_plan(task, trajectory):
    return trajectory.messages[-1].content.strip().lower().rstrip(".") == task["plan"]


def plan_reward(task, trajectory):
    return float(said_plan(task, trajectory))


Members = Environment.from_functions(
    tools=[find_member, fees],
    rewards=[plan_reward],
    success=said_plan,
    tasks=Tasks.generated(_tasks, train=200, dev=40, test=80, name="members"),
    system="You answer questions about the members of a library. Look them up.",
)
