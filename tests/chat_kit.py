"""Dialogues and formats that the tests of `ChatFormat` share."""

from chat_tokenizers import byte_level, template
from renshu.chat import ChatFormat
from renshu.types import Message, Row, ToolCall

BOS = {"g": "<bos>", "l": "<|begin_of_text|>", "d": "<|begin_of_text|>"}
TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look a city up.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = ToolCall("look_up", {"city": "Paris"})
WIRE_CALL = {"type": "function", "function": {"name": "look_up", "arguments": {"city": "Paris"}}}
USER, MORE = Message("user", "hi"), Message("user", "more")
ASKED = [Message("system", "Be brief."), USER]
DIALOGUE = [
    *ASKED,
    Message("assistant", tool_calls=(CALL,)),
    Message("tool", "12"),
    Message("assistant", "ok"),
]
NATIVE = ["qwen2_5", "qwen3", "qwen3_instruct_2507", "llama3_1", "llama3_2"]
IGNORING = ["llama3", "gemma", "gemma3", "phi3", "phi3_5", "deepseek_r1_distill", "lfm2_v2", "qwen3_5_think"]


def chat(name: str, thoughts: str = "append", **options: object) -> ChatFormat:
    eos = "<｜end▁of▁sentence｜>" if name.startswith("deepseek") else "<|endoftext|>"
    return ChatFormat(byte_level(BOS.get(name[0]), eos), template(name), thoughts, **options)


def shown(format: ChatFormat, ids: list[int] | tuple[int, ...]) -> str:
    return str(format.tokenizer.decode(list(ids), skip_special_tokens=False))


def trained(format: ChatFormat, row: Row) -> str:
    return shown(
        format, [token for token, is_trained in zip(row.ids, row.trained, strict=True) if is_trained]
    )


def wire(messages: list[Message]) -> list[dict[str, object]]:
    """The messages as transformers takes them."""
    turns = []
    for message in messages:
        turn: dict[str, object] = {"role": message.role, "content": message.content}
        turns.append({**turn, "tool_calls": [WIRE_CALL]} if message.tool_calls else turn)
    return turns
