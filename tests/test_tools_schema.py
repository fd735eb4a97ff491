"""Signatures → schemas, and arguments checked as exactly as the tool itself would."""

import asyncio
import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Annotated, Any, Literal, TypedDict

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from renshu.errors import ToolDefinitionError
from renshu.tools import ToolSpec, is_tool, tool


class Cabin(enum.Enum):
    ECONOMY = "economy"
    BUSINESS = "business"


@dataclass
class Traveller:
    name: str
    age: int = 30
    notes: list[str] = field(default_factory=list)


class Leg(TypedDict, total=False):
    origin: str


class Price(BaseModel):
    amount: float
    currency: Literal["EUR", "USD"] = "EUR"


class Trip(BaseModel):
    price: Price
    days: int


def book(
    city: str,
    day: date,
    seats: int = 1,
    budget: float | None = None,
    cabin: Cabin = Cabin.ECONOMY,
    direct: bool = False,
    unit: Literal["km", "mi"] = "km",
) -> str:
    """Book a flight.

    The cheapest one that fits.

    Args:
        city (str): Where to,
            in English.
        day: The day of departure.

    Returns:
        A number: of the booking.
    """
    return f"{city} {day:%d.%m.} {seats} {budget} {cabin.name} {direct} {unit}"


def parameter(hint: Any) -> dict[str, Any]:
    """The schema of one parameter with this type hint."""

    def f(x): ...  # type: ignore[no-untyped-def]

    f.__annotations__ = {"x": hint}
    return ToolSpec.from_function(f).schema["function"]["parameters"]["properties"]["x"]


def accepted(hint: Any, value: Any) -> Any:
    """What the tool receives, or the error's text."""
    received = []

    def f(x): ...  # type: ignore[no-untyped-def]

    def g(x: Any) -> str:
        received.append(x)
        return "ok"

    g.__annotations__ = {"x": hint}
    result = asyncio.run(ToolSpec.from_function(g).call({"x": value}))
    return received[0] if result.ok else result.text


def test_the_schema_of_a_signature_and_its_docstring() -> None:
    assert ToolSpec.from_function(book).schema == {
        "type": "function",
        "function": {
            "name": "book",
            "description": "Book a flight.\n\nThe cheapest one that fits.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Where to, in English."},
                    "day": {"type": "string", "format": "date", "description": "The day of departure."},
                    "seats": {"type": "integer", "default": 1},
                    "budget": {"type": ["number", "null"]},
                    "cabin": {"type": "string", "enum": ["economy", "business"]},
                    "direct": {"type": "boolean", "default": False},
                    "unit": {"type": "string", "enum": ["km", "mi"], "default": "km"},
                },
                "required": ["city", "day"],
            },
        },
    }


def test_arguments_arrive_as_the_types_of_the_signature() -> None:
    arguments = {"city": "Tōkyō", "day": "2026-03-09", "budget": 300, "cabin": "business"}
    assert (
        asyncio.run(ToolSpec.from_function(book).call(arguments)).text
        == "Tōkyō 09.03. 1 300.0 BUSINESS False km"
    )


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (list, {"type": "array", "items": {}}),
        (tuple[str, ...], {"type": "array", "items": {"type": "string"}}),
        (dict[str, float], {"type": "object", "additionalProperties": {"type": "number"}}),
        (str | list[str], {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
        (datetime, {"type": "string", "format": "date-time"}),
        (Literal[1, "a"], {"enum": [1, "a"]}),
        (Annotated[int, "How many."], {"type": "integer", "description": "How many."}),
        (Any, {}),
        (Leg, {"type": "object", "properties": {"origin": {"type": "string"}}, "required": []}),
        (
            Traveller,
            {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "age": {"type": "integer", "default": 30},
                    "notes": {"type": "array", "items": {"type": "string"}},
                },
                "required": ["name"],
            },
        ),
        (
            Trip,
            {
                "type": "object",
                "properties": {
                    "price": {
                        "type": "object",
                        "properties": {
                            "amount": {"type": "number"},
                            "currency": {"type": "string", "enum": ["EUR", "USD"], "default": "EUR"},
                        },
                        "required": ["amount"],
                    },
                    "days": {"type": "integer"},
                },
                "required": ["price", "days"],
            },
        ),
    ],
)
def test_types_and_their_schemas(hint: Any, schema: dict[str, Any]) -> None:
    assert parameter(hint) == schema
    jsonschema.Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize(
    ("hint", "value", "expected"),
    [
        (int, 3, 3),
        (float, 3, 3.0),
        (datetime, "2026-03-09T08:30:00", datetime(2026, 3, 9, 8, 30)),
        (list[date], ["2026-03-09"], [date(2026, 3, 9)]),
        (tuple[int, ...], [1, 2], (1, 2)),
        (dict[str, Cabin], {"a": "economy"}, {"a": Cabin.ECONOMY}),
        (date | str, "2026-03-09", date(2026, 3, 9)),
        (date | str, "soon", "soon"),
        (int | None, None, None),
        (Traveller, {"name": "Li", "notes": ["x"]}, Traveller("Li", 30, ["x"])),
        (list[Traveller], [{"name": "Li"}], [Traveller("Li")]),
        (Leg, {"origin": "Oslo"}, {"origin": "Oslo"}),
        (Trip, {"price": {"amount": 2}, "days": 1}, Trip(price=Price(amount=2.0), days=1)),
    ],
)
def test_values_are_converted(hint: Any, value: Any, expected: Any) -> None:
    assert accepted(hint, value) == expected
    assert type(accepted(hint, value)) is type(expected)


@pytest.mark.parametrize(
    ("hint", "value", "error"),
    [
        (int, 3.0, "x: expected an integer, got 3.0"),
        (int, True, "x: expected an integer, got True"),
        (int, "3", "x: expected an integer, got '3'"),
        (float, "3", "x: expected a number, got '3'"),
        (float, float("nan"), "x: expected a number, got nan"),
        (bool, 1, "x: expected true or false, got 1"),
        (str, None, "x: expected a string, got None"),
        (date, "9.3.2026", "x: expected a date (YYYY-MM-DD), got '9.3.2026'"),
        (date, "20260309", "x: expected a date (YYYY-MM-DD), got '20260309'"),
        (date, "2026-02-30", "x: expected a date (YYYY-MM-DD), got '2026-02-30'"),
        (Cabin, "Economy", "x: expected one of 'economy', 'business', got 'Economy'"),
        (Literal[1, 2], True, "x: expected one of 1, 2, got True"),
        (list[int], [1, "a"], "x[1]: expected an integer, got 'a'"),
        (Traveller, {"age": 1}, "x: missing argument 'name'"),
        (Traveller, {"name": "Li", "size": 1}, "x: unknown argument 'size'; known: name, age, notes"),
        (list[Traveller], [{"name": 1}], "x[0].name: expected a string, got 1"),
        (int | None, "a", "x: expected an integer, got 'a' or x: expected null, got 'a'"),
        (Trip, {"price": {"amount": "2"}, "days": 1}, "x.price.amount: Input should be a valid number"),
    ],
)
def test_wrong_values_are_refused_in_words(hint: Any, value: Any, error: str) -> None:
    assert accepted(hint, value) == f"error: g: {error}"


def test_enumerations_are_case_sensitive_integers_exact_and_no_argument_is_ignored() -> None:
    def convert(unit: Literal["celsius", "fahrenheit"], n: int) -> str:
        return "ran"

    spec = ToolSpec.from_function(convert)
    calls = [{"unit": "Celsius", "n": 3}, {"unit": "kelvin", "n": 3}, {"unit": "celsius", "n": 3.0}]
    calls += [{"unit": "celsius", "n": 3, "extra": 1}, {"unit": "celsius", "n": 3}]
    results = [asyncio.run(spec.call(call)) for call in calls]
    assert [result.ok for result in results] == [False, False, False, False, True]
    assert {result.error_kind for result in results[:4]} == {"invalid_arguments"}
    assert "unknown argument 'extra'; known: unit, n" in results[3].text


def test_all_that_is_wrong_is_said_at_once() -> None:
    result = asyncio.run(ToolSpec.from_function(book).call({"cty": "Oslo", "seats": "2"}))
    assert result.text == (
        "error: book: unknown argument 'cty'; known: city, day, seats, budget, cabin, direct, unit; "
        "missing argument 'city'; missing argument 'day'; seats: expected an integer, got '2'"
    )


SCHEMA_TYPES = [int, float, bool, str, list[int], int | None, Literal["a", 1], dict[str, bool], Traveller]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["a", "name", ""]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["name", "age"]), inner, max_size=2)
    ),
    max_leaves=4,
)


@settings(max_examples=200, deadline=None)
@given(hint=st.sampled_from(SCHEMA_TYPES), value=JSON)
def test_what_the_check_accepts_the_schema_accepts(hint: Any, value: Any) -> None:
    valid = jsonschema.Draft202012Validator(parameter(hint)).is_valid(value)
    refused = isinstance(accepted(hint, value), str) and accepted(hint, value).startswith("error: ")
    assert valid != refused


# --- definitions -----------------------------------------------------------------------------------


class Desk:
    @tool
    def search(self, city: str) -> str:
        """查询航班。

        参数：
            city：目的地城市
        返回：
            航班列表
        """
        return f"{city}!"

    @tool(timeout=5)
    async def wait(self) -> None: ...

    def hidden(self) -> None: ...


def test_methods_are_bound_and_chinese_docstrings_are_read() -> None:
    spec = ToolSpec.from_function(Desk().search)
    assert spec.description == "查询航班。"
    assert spec.schema["function"]["parameters"]["properties"] == {
        "city": {"type": "string", "description": "目的地城市"}
    }
    assert asyncio.run(spec.call({"city": "东京"})).text == "东京!"
    assert [is_tool(method) for method in (Desk.search, Desk().wait, Desk.hidden)] == [True, True, False]
    assert ToolSpec.from_function(Desk().wait).options.timeout == 5


def no_hint(city, day: date): ...  # type: ignore[no-untyped-def]
def stars(*cities: str): ...  # type: ignore[no-untyped-def]
def keywords(**more: str): ...  # type: ignore[no-untyped-def]
def by_place(city: str, /): ...  # type: ignore[no-untyped-def]
def odd(f: Callable[[], int]): ...  # type: ignore[no-untyped-def]
def plain_class(x: Desk): ...  # type: ignore[no-untyped-def]
def keyed(x: dict[int, str]): ...  # type: ignore[no-untyped-def]
def pair(x: tuple[int, str]): ...  # type: ignore[no-untyped-def]
def unknown(x: "Missing"): ...  # type: ignore[no-untyped-def,name-defined]  # noqa: F821


@dataclass
class Node:
    children: "list[Node]"


class Tree(BaseModel):
    children: list["Tree"]


def recursive(x: Node): ...  # type: ignore[no-untyped-def]
def recursive_model(x: Tree): ...  # type: ignore[no-untyped-def]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (no_hint, "tool no_hint, parameter city: no type hint"),
        (stars, "tool stars, parameter cities: only parameters that can be given by name"),
        (keywords, "tool keywords, parameter more: only"),
        (by_place, "tool by_place, parameter city: only"),
        (odd, "tool odd, parameter f: the type .* has no JSON form"),
        (plain_class, "tool plain_class, parameter x: the class Desk has no JSON form"),
        (keyed, "the keys of a JSON object are strings"),
        (pair, "tuple of fixed length"),
        (unknown, "tool unknown: a type hint cannot be resolved"),
        (recursive, "parameter x.children: the type Node contains itself"),
        (recursive_model, "the type Tree contains itself"),
        (lambda city: city, "cannot be a tool"),
    ],
)
def test_what_cannot_be_a_tool_is_named(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(ToolDefinitionError, match=message):
        ToolSpec.from_function(function)


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ToolDefinitionError, match="positive"):
        tool(timeout=0)
    with pytest.raises(ToolDefinitionError, match="isolate"):

        @tool(isolate=True)
        async def f() -> None: ...


@dataclass
class Span:
    low: int
    high: int

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError("low lies above high")


def test_what_the_type_itself_refuses_is_a_bad_call() -> None:
    def f(span: Span) -> int:
        """F."""
        return span.high - span.low

    spec = ToolSpec.from_function(f)
    assert asyncio.run(spec.call({"span": {"low": 1, "high": 3}})).text == "2"
    result = asyncio.run(spec.call({"span": {"low": 3, "high": 1}}))
    assert (result.text, result.error_kind) == ("error: f: span: low lies above high", "invalid_arguments")


def test_an_integer_beyond_all_floats_is_no_number() -> None:
    def f(x: float) -> float:
        """F."""
        return x

    spec = ToolSpec.from_function(f)
    assert asyncio.run(spec.call({"x": 10**308})).text == "1e+308"
    result = asyncio.run(spec.call({"x": 10**400}))
    assert result.error_kind == "invalid_arguments"
    assert result.text.startswith("error: f: x: expected a number, got 1000")
