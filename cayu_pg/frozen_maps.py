"""Maps of numbers that stay as they were validated: feature values and fusion weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NoReturn

from pydantic import AfterValidator, BeforeValidator, Field

from cayu_pg.texts import clean


class FrozenMap(dict[str, float]):
    """A dict that refuses changes with TypeError; unlike a mappingproxy it can be pickled and copied deeply."""

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("the map is read-only")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type[FrozenMap], tuple[dict[str, float]]]:
        """Pickle the whole at once; a dict subclass would be filled by the refused item assignment."""
        return FrozenMap, (dict(self),)


def _plain(value: object) -> object:
    # A map that is not plain might answer otherwise the next time it is read.
    if type(value) is not dict and type(value) is not FrozenMap:
        raise ValueError("must be a dict")
    return value


_Key = Annotated[str, Field(strict=True), AfterValidator(clean)]
_Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]

Feature = Annotated[_Number, Field(ge=0, le=1)]
Features = Annotated[Mapping[_Key, Feature], BeforeValidator(_plain), AfterValidator(FrozenMap)]
FeatureWeights = Annotated[Mapping[_Key, _Number], BeforeValidator(_plain), AfterValidator(FrozenMap)]
ChannelWeights = Annotated[
    Mapping[_Key, Annotated[_Number, Field(gt=0)]], BeforeValidator(_plain), AfterValidator(FrozenMap)
]
