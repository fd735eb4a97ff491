"""Change money: two tools given as functions."""

from renshu import Environment, Tasks

RATES = {"EUR": 100, "USD": 92, "CHF": 105, "GBP": 117}


def rate(currency: str) -> int:
    """Cents of a euro that one unit of a currency is worth.

    Args:
        currency: three letters, such as USD
    """
    return RATES[currency]


def multiply(a: float, b: float) -> float:
    """Product of two numbers."""
    return a * b


def draw(random):
    currency, amount = random.choice(["USD", "CHF", "GBP"]), random.randint(3, 900)
    prompt = f"What are {amount} {currency} in euro cents? Reply with the number only."
    return {"prompt": prompt, "cents": amount * RATES[currency]}


def changed(task, trajectory) -> float:
    try:
        return float(float(trajectory.messages[-1].content) == task["cents"])
    except ValueError:
        return 0.0


Exchange = Environment.from_functions(
    tools=[rate, multiply],
    rewards=[changed],
    success=changed,
    tasks=Tasks.generated(draw, train=300, dev=40, test=100, name="exchange"),
    system="You work at an exchange office. Look up the rate before you calculate.",
)
