"""Reads recorded cases from tests/data and turns their inputs into Python values.

Plain JSON stands for itself; an object whose single key starts with `$` is a tag for what JSON cannot say.
"""

import gzip
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

DATA = Path(__file__).parent / "data"
Case = dict[str, Any]
Names = Mapping[str, Any]


class TextSubclass(str):
    __slots__ = ()


class IntSubclass(int):
    pass


def read(name: str) -> list[Case]:
    """The cases of a file of tests/data, in order."""
    data = (DATA / name).read_bytes()
    text = gzip.decompress(data) if name.endswith(".gz") else data
    return [json.loads(line) for line in text.decode("ascii").splitlines()]


def each(cases: list[Case]) -> pytest.MarkDecorator:
    """Run a test with each case, under the name of the case."""
    assert cases
    return pytest.mark.parametrize("case", cases, ids=[case["name"] for case in cases])


def exact(value: Any) -> str:
    """A JSON value as text that tells 1 from 1.0 and true, -0.0 from 0.0, and one order of keys from another."""
    return json.dumps(value)


def decode(value: Any, names: Names) -> Any:
    """The value that `value` stands for; `names` holds the models that tags may build."""
    if isinstance(value, list):
        return [decode(item, names) for item in value]
    if not isinstance(value, dict):
        return value
    tag = next(iter(value), "")
    if len(value) == 1 and tag.startswith("$"):
        return _TAGS[tag](value[tag], names)
    return {key: decode(item, names) for key, item in value.items()}


def _pairs(pairs: Any, names: Names) -> dict[Any, Any]:
    return {decode(key, names): decode(item, names) for key, item in pairs}


def _nest(how: Any, names: Names) -> Any:
    value = decode(how.get("leaf", 0), names)
    for level in reversed(range(how["depth"])):
        is_dict = how["kind"] == "dict" or (how["kind"] == "mixed" and level % 2 == 0)
        value = {"k": value} if is_dict else [value]
    return value


def _cycle(kind: str, _names: Names) -> Any:
    loop: Any = {} if kind == "dict" else []
    if kind == "dict":
        loop["self"] = loop
    else:
        loop.append(loop)
    return loop


def _subclass(given: Any, names: Names) -> Any:
    model, arguments = given
    return type(f"Sub{model}", (names[model],), {"__module__": __name__})(**decode(arguments, names))


_TAGS: dict[str, Callable[[Any, Names], Any]] = {
    "$float": lambda text, _: float(text),
    "$tuple": lambda items, names: tuple(decode(items, names)),
    "$set": lambda items, names: set(decode(items, names)),
    "$gen": lambda items, names: iter(decode(items, names)),
    "$bytes": lambda text, _: bytes.fromhex(text),
    "$dict": _pairs,
    "$odict": lambda pairs, names: OrderedDict(_pairs(pairs, names)),
    "$mapping": lambda pairs, names: MappingProxyType(_pairs(pairs, names)),
    "$repeat": lambda given, _: given[0] * given[1],
    "$concat": lambda texts, names: "".join(decode(texts, names)),
    "$list": lambda given, names: [decode(given[0], names) for _ in range(given[1])],
    "$same": lambda given, names: [decode(given[0], names)] * given[1],
    "$keys": lambda given, _: {f"{given[0]}{index}": given[2] for index in range(given[1])},
    "$nest": _nest,
    "$cycle": _cycle,
    "$new": lambda given, names: names[given[0]](**decode(given[1], names)),
    "$construct": lambda given, names: names[given[0]].model_construct(**decode(given[1], names)),
    "$subclass": _subclass,
    "$role": lambda text, names: names["MessageRole"](text),
    "$str_subclass": lambda text, _: TextSubclass(text),
    "$int_subclass": lambda number, _: IntSubclass(number),
    "$object": lambda _, __: object(),
}
