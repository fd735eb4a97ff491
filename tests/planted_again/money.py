"""Convert prices with today's rates; functions only."""

from renshu import Environment, Tasks

RATES = {"EUR": 1.10, "GBP": 1.25, "CHF": 1.15, "JPY": 0.0065}


def draw(random):
    amount, currency = random.randint(2, 90) * 10, random.choice(sorted(RATES))
    return {
        "prompt": f"How much is {amount} {currency} in US dollars? Answer with the number, two decimals.",
        "usd": round(amount * RATES[currency], 2),
    }


def rate(currency: str) -> float:
    """US dollars for one unit of a currency.

    Args:
        currency: three letters, such as EUR
    """
    return RATES[currency]


def multiply(a: float, b: float) -> float:
    """a times b, rounded to two decimals."""
    return round(a * b, 2)


def correct(task, trajectory) -> bool:
    return trajectory.messages[-1].content.strip() == f"{task['usd']:.2f}"


def score(task, trajectory) -> float:
    return 1.0 if correct(task, trajectory) else 0.0


Money = Environment.from_functions(
    tools=[rate, multiply],
    rewards=[score],
    success=correct,
    tasks=Tasks.generated(draw, train=300, dev=50, test=100, name="money"),
    system="You convert money. Use the tools.",
)
