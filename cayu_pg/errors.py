"""Every error that cayu_pg raises, and what to do about each.

```
CayuPgError
├── InvalidInput (also ValueError)      an argument is wrong; raised before any SQL is sent
│   ├── InvalidFilter                   a `where` that the documented rules do not allow
│   └── DimensionMismatch               a vector or embedder that does not fit the collection
├── NotFound (also LookupError)         a collection, record or transcript that does not exist
├── MissingDependency (also ImportError) an optional package that this call needs
├── SchemaError                         the database is not in the state this version needs
│   ├── NotMigrated                     run `cayu-pg migrate`
│   ├── SchemaTooNew                    the schema was migrated by a newer cayu_pg
│   └── MissingExtension                pgvector is absent or too old
├── Unreachable                         the server did not answer or dropped the connection
├── Conflict                            somebody else was first; read again and decide
└── DatabaseError                       anything else the database refused; the cause is kept
    └── QueryCanceled                   a timeout or a cancellation stopped the statement
```

Contracts that users build by hand (`RankedRetrievalHit`, `Message`, ...) raise pydantic's `ValidationError`,
a `ValueError`.
"""

from __future__ import annotations


class CayuPgError(Exception):
    """The base of every error that cayu_pg raises on purpose."""


class InvalidInput(CayuPgError, ValueError):
    """An argument is wrong; nothing was sent to the database."""

    def __init__(self, field: str, expected: str, found: str) -> None:
        super().__init__(f"{field}: expected {expected}, found {found}")
        self.field = field
        self.expected = expected
        self.found = found


class InvalidFilter(InvalidInput):
    """A filter uses an unknown operator or a value its operator cannot compare."""


class DimensionMismatch(InvalidInput):
    """A vector, or the embedder that made it, does not fit the collection's embedding space."""


class NotFound(CayuPgError, LookupError):
    """The named thing does not exist in this tenant."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"no {kind} named {name!r}")
        self.kind = kind
        self.name = name


class MissingDependency(CayuPgError, ImportError):
    """An optional package is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed; install it with: pip install 'cayu-pg[{extra}]'")
        self.package = package
        self.extra = extra


class SchemaError(CayuPgError):
    """The database schema is not in the state this version of cayu_pg works with."""


class NotMigrated(SchemaError):
    """The schema is absent or behind; run the migrations."""


class SchemaTooNew(SchemaError):
    """A newer cayu_pg migrated this schema; upgrade the package."""


class MissingExtension(SchemaError):
    """The `vector` extension is absent, too old, or may not be created by this role."""


class Unreachable(CayuPgError):
    """The server cannot be reached, or the connection broke."""


class Conflict(CayuPgError):
    """A concurrent change won; the facts needed to decide again are on the error."""


class DatabaseError(CayuPgError):
    """The database refused a statement; `sqlstate` and `__cause__` say why."""

    def __init__(self, message: str, sqlstate: str | None = None) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


class QueryCanceled(DatabaseError):
    """A statement or lock timeout, or a cancellation, ended the statement."""
