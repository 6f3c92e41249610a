"""Parts that report a web search run by the provider: what was searched, and what is cited from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, StrictInt, Tag, model_validator

from cayu_pg.message_parts import (
    FrozenModel,
    ModelAttemptId,
    ModelStepId,
    Name128,
    Name512,
    exact_bool,
)
from cayu_pg.texts import clean, nonblank
from cayu_pg.web_urls import WebUrl

Title = Annotated[str, Field(max_length=1024), AfterValidator(nonblank)]
SearchText = Annotated[str, Field(max_length=4096), AfterValidator(nonblank)]


class WebSearchSource(FrozenModel):
    """A page that a hosted search returned."""

    type: Literal["url"] = "url"
    url: WebUrl
    title: Title | None = None


class WebSearchAPISource(FrozenModel):
    """A named API that a hosted search answered from; it has no address."""

    type: Literal["api"] = "api"
    name: Annotated[str, Field(max_length=1024, strict=True), AfterValidator(clean)]


def _source_tag(value: object) -> str:
    # Whatever is not plainly an API source is judged as a page, so that its errors say what a page needs.
    is_api = value.get("type") == "api" if isinstance(value, Mapping) else type(value) is WebSearchAPISource
    return "api" if is_api else "url"


def _listed(value: Any) -> Any:
    # A set has no order and a generator may never end.
    if not isinstance(value, list | tuple):
        raise ValueError("must be a list or a tuple")
    return value


def _exact_text(value: object) -> object:
    if type(value) is not str:
        raise ValueError("must be a str")
    return value


Source = Annotated[
    Annotated[WebSearchSource, Tag("url")] | Annotated[WebSearchAPISource, Tag("api")],
    Discriminator(_source_tag),
]


class WebSearchAction(FrozenModel):
    """What a hosted search did; providers leave out details, so nearly everything may be absent."""

    type: Literal["search", "open_page", "find_in_page"]
    query: SearchText | None = None
    queries: Annotated[
        tuple[Annotated[SearchText, BeforeValidator(_exact_text)], ...],
        Field(max_length=100),
        BeforeValidator(_listed),
    ] = ()
    url: WebUrl | None = None
    pattern: SearchText | None = None
    sources: Annotated[tuple[Source, ...], Field(max_length=100), BeforeValidator(_listed)] = ()

    @model_validator(mode="after")
    def _find_has_page_and_pattern(self) -> Self:
        if self.type == "find_in_page" and (self.url is None or self.pattern is None):
            raise ValueError("find_in_page needs both url and pattern")
        return self


class HostedToolCallPart(FrozenModel):
    """A tool that the provider itself ran, as it ended."""

    type: Literal["hosted_tool_call"] = "hosted_tool_call"
    hosted_tool: Literal["web_search"] = "web_search"
    call_id: Name512
    status: Literal["completed", "incomplete", "failed", "outcome_unknown"]
    action: WebSearchAction | None = None
    provider_name: Name128
    model: Name512
    model_step_id: ModelStepId
    model_attempt_id: ModelAttemptId


class CitationProvenance(FrozenModel):
    """Where a citation comes from; it is always outside evidence that nobody vouches for."""

    provider_name: Name128
    hosted_tool: Literal["web_search"] = "web_search"
    untrusted_external_evidence: Annotated[Literal[True], BeforeValidator(exact_bool)] = True


class CitationPart(FrozenModel):
    """A source that the assistant cites; the offsets, both or neither, count code points of its text."""

    type: Literal["citation"] = "citation"
    citation_type: Literal["url_citation"] = "url_citation"
    url: WebUrl
    title: Title | None = None
    start_index: Annotated[StrictInt, Field(ge=0)] | None = None
    end_index: Annotated[StrictInt, Field(gt=0)] | None = None
    provenance: CitationProvenance
    model_step_id: ModelStepId
    model_attempt_id: ModelAttemptId

    @model_validator(mode="after")
    def _offsets_are_a_span(self) -> Self:
        start, end = self.start_index, self.end_index
        if (start is None) != (end is None):
            raise ValueError("start_index and end_index come together or not at all")
        if start is not None and end is not None and end <= start:
            raise ValueError("end_index must be greater than start_index")
        return self
