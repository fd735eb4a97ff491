"""Templates in Go: rendered by hand-checked rules, equal to the chat template or refused."""

import pytest

from chat_kit import chat
from renshu.chat import ChatFormat
from renshu.envs import demonstrations
from renshu.envs.flights import FlightDesk
from renshu.envs.repairs import RepairDesk
from renshu.errors import ModelError, TemplateError
from renshu.handover.go_template import go_json, render
from renshu.handover.ollama import Dialogues, go_template, modelfile, request, require_same
from renshu.models.load import load
from renshu.models.settings import ModelSettings
from renshu.types import Message, ToolCall


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("a{{ .Name }}b", "aAnnb"),
        ("{{ if .None }}x{{ else }}y{{ end }}", "y"),
        ('{{ if eq .Name "Ann" }}x{{ end }}{{ if ne .Name "Ann" }}y{{ end }}', "x"),
        ("{{ range .List }}[{{ . }}]{{ else }}none{{ end }}", "[p][q]"),
        ("{{ range .None }}x{{ else }}none{{ end }}", "none"),
        (
            "{{ range $key, $value := .Map }}{{ $key }}={{ json $value }};{{ end }}",
            'a="1<";b=2;'.replace("<", "\\u003c"),
        ),
        ('{{ $last := "" }}{{ range .List }}{{ $last }}{{ $last = . }}{{ end }}{{ $last }}', "pq"),
        ('{{ $x := "1" }}{{ if .Name }}{{ $x := "2" }}{{ $x }}{{ end }}{{ $x }}', "21"),
        ("{{ range .List }}{{ $.Name }}{{ end }}", "AnnAnn"),
        ('{{ "{{" }}}} }', "{{}} }"),
    ],
)
def test_go_templates_by_hand(template, text):
    assert render(template, {"Name": "Ann", "List": ["p", "q"], "Map": {"b": 2, "a": "1<"}}) == text


@pytest.mark.parametrize(
    "template",
    [
        "{{{ .Name }}",
        "{{ .Name | upper }}",
        "{{ if .Name }}x",
        "{{ end }}",
        "{{ $no }}",
        "{{ .Map }}",
        "{{- .Name }}",
    ],
)
def test_what_is_not_known_or_no_go_is_refused(template):
    with pytest.raises(TemplateError, match="Go template: "):
        render(template, {"Name": "Ann", "Map": {}})


def test_json_as_go_writes_it():
    value = {"b": [1, 2.0, 2.5, True, None], "a": 'é <b> & "q"\n'}
    assert go_json(value) == '{"a":"é \\u003cb\\u003e \\u0026 \\"q\\"\\n","b":[1,2,2.5,true,null]}'


def test_ollama_joins_neighbours_of_one_role_but_answers_of_tools():
    asked = [
        Message("system", "s"),
        Message("user", "a"),
        Message("user", "b"),
        Message("tool", "1"),
        Message("tool", "2"),
    ]
    given = request(asked, [])
    assert [turn["Content"] for turn in given["Messages"]] == ["s", "a\n\nb", "1", "2"]
    assert given["System"] == "s"


def played(desk=FlightDesk):
    found = demonstrations(desk, desk.tasks.split("test")[:6], careful=0.5, seed=0)
    return found[0].tools, [one.messages for one in found]


@pytest.mark.parametrize(
    "name", ["qwen2_5", "qwen3_instruct_2507", "llama3_1", "llama3_2", "llama3", "gemma3", "phi3", "lfm2_v2"]
)
def test_templates_of_many_families_are_said_in_go(name):
    tools, dialogues = played()
    text = modelfile(Dialogues(chat(name), False), tools, dialogues, "model.gguf", 1 << 20)
    assert text.startswith('FROM ./model.gguf\nTEMPLATE """{{ $last := "" }}')
    assert "PARAMETER num_ctx 8192\n" in text


@pytest.mark.parametrize("name", ["qwen3", "deepseek_r1_distill"])
def test_templates_that_rewrite_turns_are_refused(name):
    tools, dialogues = played()
    with pytest.raises(ModelError, match=r"asks for a turn otherwise than it writes one: use --to gguf"):
        modelfile(Dialogues(chat(name), False), tools, dialogues, "model.gguf", 4096)


@pytest.mark.parametrize("template", [None, "fallback"])
def test_the_embedded_models_prompts_token_by_token(template):
    """The text that Ollama would make of real dialogues has the ids of training."""
    loaded = load(ModelSettings())
    format = ChatFormat(loaded.tokenizer, template, eos_ids=loaded.eos_ids)
    for desk in (FlightDesk, RepairDesk):
        tools, dialogues = played(desk)
        go = go_template(Dialogues(format, False), tools)
        for messages in dialogues:
            for end in (2, 4, len(messages) - 1):
                text = render(go, request(messages[:end], tools))
                assert loaded.tokenizer(text)["input_ids"] == format.prompt(messages[:end], tools)


def test_arguments_keep_the_order_and_the_blanks_of_training():
    """Go sorts the keys of a map and writes no blanks; the tool's own order is said in the template."""
    tools, _ = played()
    dialogues = Dialogues(chat("qwen2_5"), False)
    go = go_template(dialogues, tools)
    arguments = {"city": "Oslo", "date": "2026-02-10", "sort": "price", "only": ["non-stop", "after noon"]}
    asked = [
        Message("user", "go"),
        Message("assistant", tool_calls=(ToolCall("search", arguments),)),
        Message("tool", "no"),
    ]
    require_same(dialogues, go, asked, tools)
    assert '"sort": "price", "only": ["non-stop", "after noon"]}}' in render(go, request(asked, tools))


def test_a_dialogue_that_go_would_write_otherwise_is_refused():
    tools, _ = played()
    dialogues = Dialogues(chat("qwen2_5"), False)
    call = ToolCall("calendar", {"day": "next <Friday>"})  # Go's JSON escapes what HTML reads
    asked = [Message("user", "go"), Message("assistant", tool_calls=(call,)), Message("tool", "no")]
    with pytest.raises(
        ModelError, match=r"Ollama's template would write '.*u003c.* where training wrote '<Friday"
    ):
        modelfile(dialogues, tools, [asked], "model.gguf", 4096)
    go = go_template(dialogues, tools).replace("assistant\n", "assistant \n")
    with pytest.raises(ModelError, match="where training wrote"):
        require_same(dialogues, go, asked[:1], tools)


def test_a_bos_token_that_is_added_anyway_is_not_in_the_template():
    format = chat("llama3_1")
    without, with_it = (go_template(Dialogues(format, adds), ()) for adds in (True, False))
    assert "<|begin_of_text|>" not in without
    assert "<|begin_of_text|>" in with_it
