"""What channels, hits, identities and their kin accept, refuse and keep; recorded cases in tests/data."""

import copy
import hashlib
import json
import pickle
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from cayu_pg import fusion, ranking
from cayu_pg.frozen_maps import FrozenMap
from cayu_pg.ranking import RankedRetrievalChannel, RankedRetrievalHit, RetrievalCandidateIdentity, checked
from tests.golden import Case, IntSubclass, TextSubclass, decode, each, exact, read

NAMES = {**vars(ranking), **vars(fusion)}
CASES = [case for case in read("wrrf.jsonl.gz") if "quirk" not in case]
MODELS = [case for case in CASES if "model" in case]
IMMUTABLE = [case["immutable"] | {"name": case["name"]} | case for case in CASES if "immutable" in case]
IDENTITY = {"record_type": "chunk", "record_id": "a", "revision": "1"}
HIT = {"identity": IDENTITY, "rank": 1, "representation": "text", "content_hash": "h"}


def hit(**changes: Any) -> RankedRetrievalHit:
    return RankedRetrievalHit.model_validate(HIT | changes)


def channel(*hits: RankedRetrievalHit, **changes: Any) -> RankedRetrievalChannel:
    fields = {"channel": "text", "index_version": "v1", "candidate_limit": 5, "hits": hits}
    return RankedRetrievalChannel.model_validate(fields | changes)


def build(case: Case) -> BaseModel:
    built = NAMES[case["model"]].model_validate(decode(case["input"], NAMES))
    return built.model_copy(**decode(case["copy"], NAMES)) if "copy" in case else built


def first_locations(error: ValidationError) -> set[Any]:
    return {each["loc"][0] if each["loc"] else None for each in error.errors()}


@each([case for case in MODELS if "error" not in case])
def test_model_is_accepted_and_dumped_as_recorded(case: Case) -> None:
    built = build(case)
    dumped = built.model_dump(mode="json")
    if "result" in case:
        assert exact(dumped) == exact(case["result"])
    else:
        text = json.dumps(dumped, sort_keys=True, separators=(",", ":"))
        assert hashlib.sha256(text.encode()).hexdigest() == case["result_sha256"]
    if "fingerprint" in case:
        assert built.fingerprint() == case["fingerprint"]
    if "sort_key" in case:
        assert list(built.sort_key()) == case["sort_key"]
    if "fields_set" in case:
        assert sorted(built.model_fields_set) == case["fields_set"]


@each([case for case in MODELS if "error" in case])
def test_model_is_refused_at_the_recorded_field(case: Case) -> None:
    with pytest.raises(ValidationError) as refused:
        build(case)
    assert first_locations(refused.value) == {
        where[0] if where else None for where in case["error"]["fields"]
    }


@each([case for case in MODELS if "result" in case and "copy" not in case])
def test_dump_validates_again_to_the_same_dump(case: Case) -> None:
    again = NAMES[case["model"]].model_validate(case["result"])
    assert exact(again.model_dump(mode="json")) == exact(case["result"])
    assert exact(json.loads(again.model_dump_json())) == exact(case["result"])


@each(IMMUTABLE)
def test_what_is_built_does_not_change(case: Case) -> None:
    given = decode(case["input"], NAMES)
    built = NAMES[case["model"]].model_validate(given)
    if case["op"] == "mutate_input":
        change(given, case)
    else:
        with pytest.raises({"TypeError": TypeError, "ValidationError": ValidationError}[case["raises"]]):
            change(built, case)
    assert exact(built.model_dump(mode="json")) == exact(case["after"])


def change(holder: Any, case: Case) -> None:
    *path, last = case["path"]
    for step in path:
        holder = holder[step] if isinstance(holder, dict | list | tuple) else getattr(holder, step)
    match case["op"]:
        case "setattr":
            setattr(holder, last, case["value"])
        case "delattr":
            delattr(holder, last)
        case "delitem":
            del holder[last]
        case _:
            holder[last] = case["value"]


def test_replayed_data_is_complete() -> None:
    assert (len(CASES), len(MODELS), len(IMMUTABLE)) == (552, 320, 20)


@pytest.mark.parametrize("rank", [IntSubclass(3), IntEnum("Place", ["first"])(1), True])
def test_rank_is_exactly_an_int(rank: object) -> None:
    with pytest.raises(ValidationError, match="must be an int"):
        hit(rank=rank)


@pytest.mark.parametrize("huge", [10**400, -(10**400)])
def test_number_too_large_for_a_float_is_refused_at_its_field(huge: int) -> None:
    with pytest.raises(ValidationError) as refused:
        hit(raw_score=huge, features={"a": huge})
    assert first_locations(refused.value) == {"raw_score", "features"}


def test_utf8_bytes_pass_as_text() -> None:
    assert hit(representation=b"text").representation == "text"


def test_text_of_a_subclass_becomes_plain_text() -> None:
    assert type(hit(content_hash=TextSubclass("h")).content_hash) is str


def test_features_are_copied_read_only_and_ordered() -> None:
    given = {"b": 1, "a": 0.5}
    features = hit(features=given).features
    given["c"] = 0
    assert list(features.items()) == [("b", 1.0), ("a", 0.5)]
    for change in ("clear", "pop", "popitem", "setdefault", "update"):
        with pytest.raises(TypeError, match="read-only"):
            getattr(features, change)()


def test_models_can_be_pickled_and_copied_deeply() -> None:
    original = channel(hit(features={"a": 0.5}, explanations=["x"]))
    for twin in (pickle.loads(pickle.dumps(original)), copy.deepcopy(original), copy.copy(original)):
        assert twin == original
        assert type(twin.hits[0].features) is FrozenMap


def test_features_of_one_hit_fit_another() -> None:
    first = hit(features={"a": 0.5})
    assert hit(features=first.features) == first


def test_channel_counts_hits_and_ranks_against_its_limit() -> None:
    with pytest.raises(ValidationError, match="must not exceed candidate_limit 1"):
        channel(hit(rank=2), candidate_limit=1)


def test_checking_returns_a_valid_channel_itself() -> None:
    valid = channel(hit(features={"a": 0.5}, explanations=["x"], raw_score=1, continuation="more"))
    assert checked(valid) is valid


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rank", 0),
        ("rank", 6),
        ("representation", " text"),
        ("content_hash", ["h"]),
        ("explanations", ("",)),
        ("raw_score", float("nan")),
        ("features", {"a": 2.0}),
        ("features", None),
        ("continuation", ""),
    ],
)
def test_checking_notices_a_changed_hit(field: str, value: object) -> None:
    tampered = hit()
    whole = channel(tampered)
    object.__setattr__(tampered, field, value)
    with pytest.raises(ValidationError):
        checked(whole)


@pytest.mark.parametrize(
    ("field", "value"), [("hits", ()), ("truncated", 1), ("candidate_limit", True), ("continuation", "x")]
)
def test_checking_notices_a_changed_channel(field: str, value: object) -> None:
    whole = channel(hit(), truncated=False).model_copy(update={field: value})
    if field == "hits":
        assert checked(whole) is whole
        return
    with pytest.raises(ValidationError) as refused:
        checked(whole)
    assert first_locations(refused.value) == ({None} if field == "continuation" else {field})


def test_checking_names_the_field_of_a_bad_identity() -> None:
    bad = RetrievalCandidateIdentity.model_construct(record_type="chunk", record_id="", revision="1")
    with pytest.raises(ValidationError) as refused:
        checked(channel(hit().model_copy(update={"identity": bad})))
    assert first_locations(refused.value) == {"record_id"}


def test_checking_notices_features_changed_behind_their_back() -> None:
    tampered = hit(features={"a": 0.5})
    dict.__setitem__(tampered.features, "a", 7.0)  # type: ignore[arg-type]  # what no caller should do
    with pytest.raises(ValidationError, match="features"):
        checked(channel(tampered))


def test_checking_normalises_what_is_only_written_differently() -> None:
    loose = RankedRetrievalHit.model_construct(
        **HIT | {"identity": hit().identity, "explanations": ["x", "x"]}
    )
    whole = channel().model_copy(update={"hits": [loose]})
    assert checked(whole) == channel(hit(explanations=["x"]))


def test_checking_refuses_other_classes() -> None:
    class Other(RetrievalCandidateIdentity):
        pass

    other = hit().model_copy(update={"identity": Other(**IDENTITY)})
    with pytest.raises(TypeError, match="identity: expected RetrievalCandidateIdentity, found Other"):
        checked(channel(other))
    with pytest.raises(TypeError, match=r"identity: .* found NoneType"):
        checked(channel().model_copy(update={"hits": (RankedRetrievalHit.model_construct(rank=1),)}))


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-1, 4),
    st.floats(),
    st.text(" a\x00", max_size=3),
    st.just(("a", "a")),
)
fields = st.sampled_from(sorted(set(RankedRetrievalHit.model_fields) - {"identity"}))


@given(fields, values)
def test_what_checking_lets_through_is_what_validation_makes(field: str, value: object) -> None:
    unchecked = channel().model_copy(update={"hits": (hit().model_copy(update={field: value}),)})
    try:
        expected = channel(hit(**{field: value}))
    except ValidationError:
        with pytest.raises(ValidationError):
            checked(unchecked)
    else:
        found = checked(unchecked).model_dump(mode="json")
        assert found == expected.model_dump(mode="json")
