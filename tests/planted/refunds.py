"""May this order be refunded? Yes or no."""

from renshu import Environment, Tasks


def draw(random):
    days, limit = random.randint(1, 60), random.choice([14, 30, 45])
    return {
        "prompt": f"Order {random.randint(1000, 9999)} was delivered {days} days ago, the limit is {limit}. "
        "May it be refunded? Answer yes or no.",
        "days": days,
        "limit": limit,
    }


def within(days: int, limit: int) -> bool:
    """Whether a delivery is within the limit of days.

    Args:
        days: since the delivery
        limit: days that the customer has
    """
    return days <= limit


def verdict(task, trajectory) -> float:
    reply = trajectory.messages[-1].content.lower()
    wanted = "yes" if task["days"] <= task["limit"] else "no"
    return float(reply.strip(" .!\n") == wanted)


Refunds = Environment.from_functions(
    tools=[within],
    rewards=[verdict],
    success=verdict,
    tasks=Tasks.generated(draw, train=300, dev=40, test=100, name="refunds"),
    system="You decide on refunds. Use the tool, then answer with one word.",
)
