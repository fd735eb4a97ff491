"""快递查询：查运单现在在哪个城市。"""

import re

from renshu import Environment, Tasks, call, reward, say, success, tool

城市 = ["北京", "上海", "广州", "成都", "武汉", "西安", "杭州"]


def 出题(random):
    return {"单号": f"SF{random.randint(10000, 99999)}", "城市": random.choice(城市)}


class Kuaidi(Environment):
    system = "你是快递客服。请用工具查询，最后把城市写在【】里，例如【南京】。"
    max_turns = 4
    tasks = Tasks.generated(出题, train=400, dev=50, test=100)

    def setup(self, task):
        return f"我的运单{task['单号']}现在到哪个城市了？"

    @tool
    def track(self, number: str) -> dict:
        """查询运单所在的城市。

        Args:
            number: 运单号
        """
        if number != self.task["单号"]:
            return {"错误": "没有这个运单"}
        return {"城市": self.task["城市"]}

    def _框里(self, trajectory):
        found = re.findall(r"【(.+?)】", trajectory.messages[-1].content)
        return found[-1] if found else None

    @success
    def 对了(self, trajectory):
        return self._框里(trajectory) == self.task["城市"]

    @reward(0.9)
    def 城市对(self, trajectory):
        return float(self.对了(trajectory))

    @reward(0.1, kind="format")
    def 格式(self, trajectory):
        return float(self._框里(trajectory) is not None)

    def solve(self):
        yield call("track", number=self.task["单号"])
        yield say(f"您的快递在【{self.task['城市']}】。")
