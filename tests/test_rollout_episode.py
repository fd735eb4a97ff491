"""Episodes: tokens kept as sampled, and every way to end, scored or honestly unknown."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chat_tokenizers import template
from renshu.chat import ChatFormat
from renshu.envs import Environment, Interaction, play_through, reward
from renshu.envs.flights import FlightDesk
from renshu.errors import ConfigError, ContractError, EngineError
from renshu.rewards import cause_of
from renshu.rollout import Limits, run_episode
from renshu.rollout.episode import UNLIMITED
from renshu.types import Message, Scored, Segment, Stop, Unscored, row_of
from rollout_kit import CHAT, Shelf, call_text, engine, ids_of, sampling, text_of, trained_text
from tiny_models import byte_tokenizer

FETCH = call_text("fetch", '{"box": "red"}')


def episode(script, *, make_env=Shelf, task=None, max_tokens=2000, limits=UNLIMITED, chat=CHAT, context=8192):
    task = task or make_env.tasks.train[0]
    source = engine(script, context)
    opening = Interaction(make_env(), task)
    session = source.open(chat.prompt(opening.messages, opening.schemas), seed=0)
    (trajectory,) = source.run(
        [
            run_episode(
                make_env(),
                task,
                session,
                chat,
                sampling(max_tokens),
                limits,
                lambda ids: source.open(ids, seed=1),
            )
        ]
    )
    with pytest.raises(EngineError, match="closed"):
        session.extend([1])
    return trajectory


def test_an_episode_token_by_token():
    trajectory = episode([FETCH, "Here it is."])
    assert trained_text(trajectory) == [FETCH + "<|im_end|>", "Here it is.<|im_end|>"]
    assert [segment.sampled for segment in trajectory.segments] == [False, True, False, True]
    assert text_of(trajectory.segments[2].ids) == (
        "\n<|im_start|>user\n<tool_response>\nhere is red\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert [m.role for m in trajectory.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert trajectory.stop is Stop.ANSWERED
    assert trajectory.score == Scored(1.0, {"right": 1.0}, success=True)
    assert trajectory.counts == {"turns": 2, "calls": 1, "bad_calls": 0, "tool_errors": 0, "timeouts": 0}
    assert trajectory.sampled_tokens == len(ids_of(FETCH)) + len(ids_of("Here it is."))


def test_rollout_and_supervised_rows_of_one_dialogue_are_the_same_tokens():
    task = FlightDesk.tasks.test[0]
    gold = play_through(FlightDesk(), task)
    row = CHAT.supervised(gold.messages, [spec.schema for spec in FlightDesk().tools()])
    said, inside = [], False
    for token, trained in zip(row.ids, row.trained, strict=True):
        if trained and not inside:
            said.append([])
        if trained:
            said[-1].append(token)
        inside = trained
    replies = [text_of(ids).removesuffix("<|im_end|>") for ids in said]
    played = episode(replies, make_env=FlightDesk, task=task)
    assert (row_of(played.segments).ids, row_of(played.segments).trained) == (row.ids, row.trained)
    assert played.messages == gold.messages
    assert played.score == gold.score


def test_e22_tool_tokens_are_not_trained():
    lengths = [(5, False), (4, True), (6, False), (3, True)]
    path = [Segment((7,) * n, sampled, (0.0,) * n if sampled else None) for n, sampled in lengths]
    row = row_of(path)
    assert sum(row.trained) == 7
    assert len(row.trained) == len(row.ids) == 18
    trajectory = episode([FETCH, "Done."])
    row = row_of(trajectory.segments)
    assert sum(row.trained) == len(ids_of(FETCH)) + len(ids_of("Done."))
    kept = [i for i, trained in zip(row.ids, row.trained, strict=True) if trained]
    assert "here is red" not in text_of(kept)


def test_unreadable_calls_are_answered_and_counted():
    trajectory = episode(["<tool_call>\n{'name': fetch}\n</tool_call>", FETCH, "Here."])
    error = trajectory.messages[3]
    assert error.role == "tool"
    assert error.content.startswith("error: bad_json")
    assert trajectory.counts["bad_calls"] == 1
    assert trajectory.counts["calls"] == 2
    assert trajectory.score.value == 1.0


def test_each_call_of_a_turn_gets_its_answer_in_order():
    both = "\n".join([call_text("fetch", "[1]"), call_text("fetch", '{"box": "blue"}'), FETCH])
    trajectory = episode([both, "Here."])
    answers = [m.content for m in trajectory.messages if m.role == "tool"]
    assert answers[0].startswith("error: not_an_object")
    assert answers[1:] == ["here is blue", "here is red"]
    assert trajectory.counts["calls"] == 3


def test_turn_limit():
    trajectory = episode([call_text("read", '{"pages": 1}')] * 9)
    assert (trajectory.stop, trajectory.counts["turns"]) == (Stop.TURNS, 5)
    assert trajectory.score == Scored(0.0, {"right": 0.0}, success=False)
    assert episode([FETCH] * 9, limits=Limits(turns=1)).counts["turns"] == 1


def test_a_reply_cut_at_the_budget_is_not_carried_out():
    budget = len(ids_of(FETCH)) - 1  # all of the call, but not its stop token
    trajectory = episode([FETCH], max_tokens=budget)
    assert trajectory.stop is Stop.LENGTH
    assert trajectory.sampled_tokens == budget
    assert trajectory.score == Scored(0.0, {"right": 0.0}, success=False)
    assert trajectory.counts["calls"] == 0
    assert trajectory.messages[-1].role == "assistant"


def test_the_budget_spans_all_turns_and_ends_the_episode_between_them_too():
    first = len(ids_of(FETCH))
    assert episode([FETCH, "Here."], max_tokens=first + 3).sampled_tokens == first + 3
    exact = episode([FETCH, "Here."], max_tokens=first)
    assert (exact.stop, exact.sampled_tokens, exact.score.value) == (Stop.LENGTH, first, 1.0)


def test_a_context_overflowed_by_tool_output_is_unknown_not_zero():
    trajectory = episode([FETCH, call_text("read", '{"pages": 2000}'), "never"], context=4096)
    assert trajectory.stop is Stop.LENGTH
    assert isinstance(trajectory.score, Unscored)
    assert cause_of(trajectory.score) == "context_overflow"
    assert trajectory.messages[-1].role == "tool"
    assert not trajectory.segments[-1].sampled or text_of(trajectory.segments[-1].ids).endswith("<|im_end|>")


def test_a_context_used_up_by_the_model_itself_is_scored():
    opening = Interaction(Shelf(), Shelf.tasks.train[0])
    prompt = len(CHAT.prompt(opening.messages, opening.schemas))
    trajectory = episode(["x" * 500], context=prompt + 10)
    assert (trajectory.stop, trajectory.sampled_tokens) == (Stop.LENGTH, 10)
    assert isinstance(trajectory.score, Scored)


class Unverifiable(Shelf):
    @reward(1.0)
    def right(self):
        raise RuntimeError("verifier crashed")


def test_e23_only_what_the_policy_cannot_cause_is_dropped():
    no_start = episode([call_text("crash", "{}")])
    crashed = episode([FETCH, "Here."], make_env=Unverifiable)
    late = episode([FETCH, call_text("nap", '{"seconds": 0.3}'), "never"], limits=Limits(seconds=0.25))
    wrong = episode([call_text("fetch", '{"box": "blue"}'), "Here."])
    assert no_start.stop is Stop.ERROR
    assert no_start.score == Unscored("infrastructure: the lift did not start")
    assert cause_of(crashed.score) == "reward_failed"
    assert (late.stop, late.score.value) == (Stop.TIMEOUT, 1.0)  # its partial state, labelled
    assert (wrong.stop, wrong.score.value) == (Stop.ANSWERED, 0.0)


def test_a_reply_that_comes_too_late_is_not_carried_out():
    late = episode([FETCH], limits=Limits(seconds=0.0))
    assert (late.stop, late.score.value, late.counts["calls"]) == (Stop.TIMEOUT, 0.0, 0)


def test_failures_of_engine_and_environment_are_unscored():
    source, opening = engine([FETCH]), Interaction(Shelf(), Shelf.tasks.train[0])
    session = source.open(CHAT.prompt(opening.messages, opening.schemas), seed=0)
    session.close()  # the next turn cannot be sampled
    (cut,) = source.run([run_episode(Shelf(), opening.task, session, CHAT, sampling())])
    assert (cut.stop, cause_of(cut.score)) == (Stop.ERROR, "infrastructure")

    class Buggy(Shelf):
        def is_done(self):
            return self.missing

    buggy = episode([FETCH], make_env=Buggy)
    assert buggy.stop is Stop.ERROR
    assert "Buggy.is_done: AttributeError" in buggy.score.reason

    class Flaky(Shelf):
        broken = False

        def setup(self, task):
            if type(self).broken:
                raise OSError("no disk")
            type(self).broken = True  # the first setup, for the prompt, works
            return super().setup(task)

    flaky = episode([FETCH], make_env=Flaky)
    assert (flaky.stop, flaky.messages) == (Stop.ERROR, ())
    assert "no disk" in flaky.score.reason


def test_a_setup_that_differs_between_objects_is_a_broken_contract():
    class Moody(Shelf):
        made = 0

        def setup(self, task):
            type(self).made += 1
            return f"{super().setup(task)} {type(self).made}"

    with pytest.raises(ContractError, match="setup must depend on the task alone"):
        episode([FETCH], make_env=Moody)


class Chatty(Shelf):
    """Its user says something twice."""

    def user(self, reply):
        said = {"Which?": "The red one.", "Sure?": "Yes."}
        return said.get(reply.content)


def test_simulated_user_turns_become_foreign_tokens():
    trajectory = episode(["Which?", FETCH, "Here."], make_env=Chatty)
    assert trajectory.messages[3] == Message("user", "The red one.")
    assert "<|im_start|>user\nThe red one.<|im_end|>" in text_of(trajectory.segments[2].ids)
    assert trajectory.score.value == 1.0


THOUGHT = "<think>\nask first\n</think>\n\nWhich?"


def qwen3(policy):
    return ChatFormat(byte_tokenizer(template("qwen3")), thoughts=policy)


def test_thoughts_append_keeps_one_path():
    trajectory = episode([THOUGHT, "Sure?", "Done."], make_env=Chatty, chat=qwen3("append"))
    assert trajectory.forks == ()
    assert "ask first" in text_of(i for segment in trajectory.segments for i in segment.ids)


def test_thoughts_fork_leaves_the_path_behind_where_the_template_rewrites_it():
    trajectory = episode([THOUGHT, "Sure?", "Done."], make_env=Chatty, chat=qwen3("fork"))
    texts = [text_of(i for segment in path for i in segment.ids) for path in trajectory.paths]
    assert len(trajectory.forks) == 1
    assert "ask first" in texts[0]
    assert "ask first" not in texts[1]
    assert texts[0].endswith("Which?<|im_end|>")
    assert [trained for path in trajectory.paths for trained in map(text_of, sampled(path))] == [
        THOUGHT + "<|im_end|>",
        "Sure?<|im_end|>",
        "Done.<|im_end|>",
    ]  # every reply is trained exactly once


def sampled(path):
    return [segment.ids for segment in path if segment.sampled]


def test_a_rewritten_history_needs_a_way_to_open_the_new_path():
    chat, source, task = qwen3("fork"), engine([THOUGHT, "Done."]), Shelf.tasks.train[0]
    opening = Interaction(Chatty(), task)
    session = source.open(chat.prompt(opening.messages, opening.schemas), seed=0)
    with pytest.raises(ConfigError, match="pass `reopen`"):
        source.run([run_episode(Chatty(), task, session, chat, sampling())])


REPLIES = st.one_of(
    st.just(FETCH),
    st.just(call_text("read", '{"pages": 3}')),
    st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=20),
    st.builds(lambda t: f"<tool_call>{t}</tool_call>", st.text("ab{}\"' :", max_size=12)),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(REPLIES, min_size=5, max_size=5), st.integers(1, 400))
def test_segments_are_exactly_what_the_engine_held(replies, budget):
    task, source = Shelf.tasks.train[0], engine(replies)
    opening = Interaction(Shelf(), task)
    session = source.open(CHAT.prompt(opening.messages, opening.schemas), seed=0)
    (trajectory,) = source.run([run_episode(Shelf(), task, session, CHAT, sampling(budget))])
    row = row_of(trajectory.segments)
    assert list(row.ids) == session.ids
    assert sum(row.trained) == trajectory.sampled_tokens == source.stats.sampled <= budget
    assert isinstance(trajectory.score, Scored)
    assert trajectory.counts["turns"] == sum(m.role == "assistant" for m in trajectory.messages)


def test_environment_base_has_no_tools_of_its_own():
    assert Environment().tools() == ()
