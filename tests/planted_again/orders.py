"""Order desk with a stock: sell what there is, decline the rest."""

import copy

from renshu import Environment, Tasks, ToolError, call, reward, say, success, tool

STOCK = {"lamp": 6, "desk": 2, "chair": 9, "shelf": 4}


def new_order(random):
    return {
        "item": random.choice(sorted(STOCK)),
        "count": random.randint(1, 2),
        "customer": random.randint(1, 500),
    }


class OrderDesk(Environment):
    system = "You work at an order desk. Sell the customer what is wanted and confirm in one sentence."
    max_turns = 5
    tasks = Tasks.generated(new_order, train=400, dev=50, test=100)

    def setup(self, task):
        self.stock = copy.deepcopy(STOCK)
        self.sold = None
        return f"Customer {task['customer']} here, {task['count']} x {task['item']} please."

    @tool
    def in_stock(self, item: str) -> int:
        """How many of an item are there."""
        return self.stock.get(item, 0)

    @tool
    def sell(self, customer: int, item: str, count: int) -> str:
        """Sell to a customer; the stock becomes smaller."""
        if self.stock.get(item, 0) < count:
            raise ToolError(f"only {self.stock.get(item, 0)} left")
        self.stock[item] -= count
        self.sold = (customer, item, count)
        return "sold"

    @success
    def done(self):
        return self.sold == (self.task["customer"], self.task["item"], self.task["count"])

    @reward(1.0)
    def sale(self):
        return float(self.done())

    def solve(self):
        yield call("in_stock", item=self.task["item"])
        yield call("sell", customer=self.task["customer"], item=self.task["item"], count=self.task["count"])
        yield say("Sold, thank you.")
