"""图书馆:查询一本书还剩多少册。"""

import re

from renshu import Environment, Tasks, reward, success, tool


def draw(random):
    return {
        "book": random.choice(["红楼梦", "西游记", "水浒传", "三国演义"]),
        "copies": random.randint(20, 90),
        "lent": random.randint(1, 19),
    }


class Library(Environment):
    system = "你是图书管理员。先查询馆藏和借出的册数,再计算还剩多少册。最后一行写 答案: 册数"
    max_turns = 4
    tasks = Tasks.generated(draw, train=300, dev=40, test=100)

    def setup(self, task):
        return f"请问《{task['book']}》现在还剩多少册?"

    @tool
    def holdings(self, book: str) -> int:
        """馆藏的总册数。

        Args:
            book: 书名
        """
        return self.task["copies"]

    @tool
    def lent(self, book: str) -> int:
        """已经借出的册数。

        Args:
            book: 书名
        """
        return self.task["lent"]

    @success
    def correct(self, trajectory):
        found = re.search(r"答案[:\uff1a]\s*(\d+)\s*$", trajectory.messages[-1].content)
        return bool(found) and int(found.group(1)) == self.task["copies"] - self.task["lent"]

    @reward(1.0)
    def right(self, trajectory):
        return float(self.correct(trajectory))
