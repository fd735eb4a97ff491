"""An order desk: look the price up, place the order with its total."""

from dataclasses import dataclass

from renshu import Environment, Tasks, ToolError, call, reward, say, success, tool

ARTICLES = ("lamp", "desk", "chair", "shelf", "rug")


@dataclass
class Order:
    article: str
    quantity: int
    total: float


def draw(random):
    return {
        "article": random.choice(ARTICLES),
        "quantity": random.randint(2, 9),
        "cents": random.randint(10, 99) * 50,
    }


class OrderDesk(Environment):
    system = "You take orders. Look up the price, then place one order with its total in cents."
    max_turns = 4
    tasks = Tasks.generated(draw, train=500, dev=50, test=100)

    def setup(self, task):
        self.placed = []
        return f"I would like {task['quantity']} pieces of: {task['article']}."

    @tool
    def price(self, article: str) -> dict:
        """Price of one piece, in cents.

        Args:
            article: name of the article
        """
        if article != self.task["article"]:
            raise ToolError(f"no such article in stock: {article}")
        return {"article": article, "cents": self.task["cents"]}

    @tool
    def place(self, order: Order) -> str:
        """Place the order.

        Args:
            order: what is ordered, and its total in cents
        """
        self.placed.append(order)
        return "placed"

    @success
    def correct(self):
        due = Order(self.task["article"], self.task["quantity"], self.task["quantity"] * self.task["cents"])
        return self.placed == [due]

    @reward(1.0)
    def paid(self):
        return 1.0 if self.correct() else 0.0

    def solve(self):
        yield call("price", article=self.task["article"])
        total = self.task["quantity"] * self.task["cents"]
        order = {"article": self.task["article"], "quantity": self.task["quantity"], "total": total}
        yield call("place", order=order)
        yield say("Your order is placed.")
