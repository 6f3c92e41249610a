import json
from collections import OrderedDict
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from cayu_pg.durable_json import (
    MAX_BYTES,
    MAX_INTEGER,
    MAX_VALUES,
    JsonObject,
    compact_bytes,
    durable,
    durable_object,
)
from cayu_pg.errors import InvalidInput

storable_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False).filter(lambda number: not number.is_integer())
    | storable_text
)
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(storable_text, inner, max_size=4),
    max_leaves=20,
)


class Colour(StrEnum):
    RED = "red"


class Text(str):
    __slots__ = ()


class Number(int):
    pass


REFUSED: list[Any] = [
    float("nan"),
    float("inf"),
    float("-inf"),
    1e19,
    -1e300,
    2**63,
    -(2**63) - 1,
    "\x00",
    "a\ud800",
    "\udfff",
    (1, 2),
    {1},
    b"bytes",
    object(),
    Colour.RED,
    Text("text"),
    Number(5),
    OrderedDict(a=1),
    MappingProxyType({"a": 1}),
    {1: "a"},
    {None: "a"},
    {"\x00": 1},
    {"\ud800": 1},
    {Text("key"): 1},
    {Colour.RED: 1},
]


def nested(depth: int, kind: str = "list") -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value] if kind == "list" else {"k": value}
    return value


@given(json_values)
def test_what_passes_survives_the_way_through_json_unchanged(value: Any) -> None:
    copy = durable(value)
    assert copy == value
    assert json.loads(json.dumps(copy)) == copy
    assert repr(json.loads(json.dumps(copy))) == repr(copy)


@given(json_values)
def test_the_copy_passes_again_and_stays_the_same(value: Any) -> None:
    assert repr(durable(durable(value))) == repr(durable(value))


@given(json_values, st.data())
def test_one_bad_value_anywhere_is_refused(value: Any, data: st.DataObject) -> None:
    holder = {"before": value, "list": [value, data.draw(st.sampled_from(REFUSED)), value]}
    with pytest.raises(InvalidInput) as refused:
        durable(holder, field="metadata")
    assert refused.value.field.startswith("metadata.list[1]")


@pytest.mark.parametrize("value", REFUSED, ids=ascii)
def test_what_jsonb_would_change_or_refuse_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput):
        durable(value)


def test_the_copy_is_detached() -> None:
    original: dict[str, Any] = {"a": [1, {"b": 2}]}
    copy = durable(original)
    original["a"][1]["b"] = "changed"
    assert copy == {"a": [1, {"b": 2}]}


def test_an_object_used_twice_becomes_two() -> None:
    shared: list[int] = [1]
    copy = durable([shared, shared])
    assert isinstance(copy, list)
    assert copy == [[1], [1]]
    assert copy[0] is not copy[1]


def test_integral_floats_become_ints_and_others_keep_their_bits() -> None:
    copy = durable([1.0, -0.0, 1e18, 0.1, 5e-324])
    assert repr(copy) == "[1, 0, 1000000000000000000, 0.1, 5e-324]"


def test_key_order_is_kept() -> None:
    assert list(durable_object({"b": 2, "a": 1, "": 0})) == ["b", "a", ""]


def test_integers_reach_to_the_edge_of_64_bits() -> None:
    assert durable([MAX_INTEGER, -MAX_INTEGER - 1]) == [2**63 - 1, -(2**63)]


def test_every_unicode_plane_passes() -> None:
    text = "".join(chr(plane * 0x10000 + 0x41) for plane in range(17)) + "\ufffe\uffff\U0010ffff\u2028\x7f"
    assert durable({text: text}) == {text: text}


@pytest.mark.parametrize("kind", ["list", "object"])
def test_nesting_up_to_the_bound(kind: str) -> None:
    assert durable(nested(64, kind)) == nested(64, kind)
    with pytest.raises(InvalidInput, match="nested containers"):
        durable(nested(65, kind))
    with pytest.raises(InvalidInput, match="nested containers"):
        durable(nested(2, kind), depth=1)


def test_very_deep_input_is_refused_without_exhausting_the_stack() -> None:
    with pytest.raises(InvalidInput, match="nested containers"):
        durable(nested(100_000))


def test_a_container_that_holds_itself_is_refused() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    with pytest.raises(InvalidInput, match="holds itself"):
        durable(loop)


def test_containers_and_scalars_count_but_keys_do_not() -> None:
    full = {"k": [0] * (MAX_VALUES - 2)}
    assert durable(full) == full
    with pytest.raises(InvalidInput, match="at most 250000 values"):
        durable({"k": [0] * (MAX_VALUES - 1)})
    assert durable({"a": 1, "b": 2}, values=3) == {"a": 1, "b": 2}
    with pytest.raises(InvalidInput, match="at most 2 values"):
        durable({"a": 1, "b": 2}, values=2)


def test_doubling_by_shared_lists_is_stopped_by_the_count() -> None:
    value: list[Any] = []
    for _ in range(60):
        value = [value, value]
    with pytest.raises(InvalidInput, match="values"):
        durable(value)


@pytest.mark.parametrize(("text", "width"), [("a", 1), ("\u00e9", 2), ("\u20ac", 3), ("\U0001f600", 4)])
def test_bytes_are_those_of_compact_utf8(text: str, width: int) -> None:
    fits = (100 - 2) // width
    assert durable(text * fits, size=100) == text * fits
    with pytest.raises(InvalidInput, match="at most 100 bytes"):
        durable(text * (fits + 1), size=100)


def test_the_byte_bound_is_exact() -> None:
    at_limit = {"k": "x" * (MAX_BYTES - 8)}
    assert durable(at_limit) == at_limit
    with pytest.raises(InvalidInput, match="bytes of JSON"):
        durable({"k": "x" * (MAX_BYTES - 7)})


def test_a_long_text_held_many_times_is_refused_before_it_is_written_out() -> None:
    with pytest.raises(InvalidInput, match="bytes of JSON"):
        durable(["x" * 1_000_000] * 100_000)


@given(json_values)
def test_compact_bytes_counts_json_without_spaces(value: Any) -> None:
    size = compact_bytes(value)
    assert durable(value, size=size) == value
    with pytest.raises(InvalidInput):
        durable(value, size=size - 1)


def test_the_error_names_the_place_and_the_kind_but_not_the_value() -> None:
    with pytest.raises(InvalidInput) as refused:
        durable_object({"a": [0, 1, {"two words": Text("secret")}]}, field="metadata")
    assert refused.value.field == "metadata.a[2]['two words']"
    assert refused.value.found == "a value of type Text"
    assert "secret" not in str(refused.value)
    assert refused.value.__suppress_context__


def test_a_deep_place_is_cut_short() -> None:
    with pytest.raises(InvalidInput) as refused:
        durable(nested(100))
    assert refused.value.field == "value" + "[0]" * 8 + "..."


@pytest.mark.parametrize("value", [None, 5, "text", [], [{}]])
def test_an_object_is_asked_for(value: Any) -> None:
    with pytest.raises(InvalidInput, match="metadata: expected a JSON object"):
        durable_object(value, field="metadata")


class Holder(BaseModel):
    payload: JsonObject


def test_a_pydantic_field_owns_its_object() -> None:
    given_payload = {"a": [1.0]}
    holder = Holder(payload=given_payload)
    given_payload["a"].append(2.0)
    assert holder.model_dump() == {"payload": {"a": [1]}}


def test_a_pydantic_field_names_the_place() -> None:
    with pytest.raises(ValidationError, match=r"payload\.a\[0\]: expected"):
        Holder(payload={"a": [float("nan")]})
