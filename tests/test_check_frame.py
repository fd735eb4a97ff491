"""Words around an answer are a format that must be asked for; what all answers share inside is not."""

import pytest

from renshu.check import check_environment
from renshu.check.wording import _around
from renshu.envs import Environment, Tasks, call, reward, say, success
from renshu.tools import tool


@pytest.mark.parametrize(
    ("texts", "around"),
    [
        (
            ["It is due on 2027-03-14.", "It is due on 2027-04-02.", "It is due on 2027-11-20."],
            ("It is due on ", "."),
        ),
        (["ANSWER:12", "ANSWER:31", "ANSWER:7"], ("ANSWER:", "")),
        (["<answer>12</answer>", "<answer>3</answer>", "<answer>45</answer>"], ("<answer>", "</answer>")),
        (["Loan L-12 it is.", "Loan L-31 it is.", "Loan L-7 it is."], ("Loan ", " it is.")),
        (["At 10:30.", "At 10:15.", "At 10:55."], ("At ", ".")),
        (["At 09:30.", "At 10:30.", "At 21:30."], ("At ", ".")),
        (["12.00 euros", "3.00 euros", "7.00 euros"], ("", " euros")),
        (["Write to ann@desk.org", "Write to bo@desk.org", "Write to cy@desk.org"], ("Write to ", "")),
        (["See https://desk.org/1", "See https://desk.org/22", "See https://desk.org/3"], ("See ", "")),
        (["可借至 2027-03-14。", "可借至 2027-04-02。", "可借至 2027-11-20。"], ("可借至 ", "。")),
        (["same", "same", "other"], ("", "")),
    ],
)
def test_what_stands_around_an_answer_is_no_part_of_it(texts, around):
    assert _around(texts) == around


class Loans(Environment):
    """Say until when a book may be kept; all days are of one year."""

    system = "Use the tool. Answer with the day."
    tasks = Tasks.generated(
        lambda random: {"day": f"2027-{random.randint(1, 12):02d}-{random.randint(1, 28):02d}"},
        train=40,
        dev=20,
        test=20,
        name="loans",
    )

    def setup(self, task):
        return "Until when may the book be kept?"

    @tool
    def due(self) -> str:
        """Day on which the book is due."""
        return self.task["day"]

    @success
    def solved(self, trajectory):
        return self.task["day"] in trajectory.messages[-1].content.split()

    @reward(1.0)
    def right(self, trajectory):
        return float(self.solved(trajectory))

    def solve(self):
        yield say(f"Until {(yield call('due'))}")


class Framed(Loans):
    """The same, but only with the word that nobody asked for."""

    @success
    def solved(self, trajectory):
        return trajectory.messages[-1].content == f"DUE ON: {self.task['day']}"

    def solve(self):
        yield say(f"DUE ON: {(yield call('due'))}")


def test_a_year_that_all_answers_share_is_no_format():
    assert [f for f in check_environment(Loans).findings if f.code == "format_not_asked"] == []


def test_words_that_must_be_said_still_are():
    told = [f.what for f in check_environment(Framed).findings if f.code == "format_not_asked"]
    assert told == ["the answer must be framed by 'DUE ON:', which the prompt never says"]
