"""Every error that cayu_pg raises, and what to do about each.

```
CayuPgError
├── InvalidInput (also ValueError)      an argument is wrong; raised before any SQL is sent
│   ├── InvalidFilter                   a `where` that the documented rules do not allow
│   └── DimensionMismatch               a vector or embedder that does not fit the collection
├── NotFound (also LookupError)         a collection, record or transcript that does not exist
├── TooManyDeletions                    a sync would delete more than it may; nothing was deleted
├── HistoryPruned                       the past that was asked for has been pruned
├── MissingDependency (also ImportError) an optional package that this call needs
├── SchemaError                         the database is not in the state this version needs
│   ├── NotMigrated                     run `cayu-pg migrate`
│   ├── SchemaTooNew                    the schema was migrated by a newer cayu_pg
│   └── MissingExtension                pgvector is absent or too old
├── Unreachable                         the server does not answer, or not now
│   └── ConnectionLost                  the connection broke, twice; nothing was written
│       └── OutcomeUnknown              it broke during the commit: all was written, or nothing
├── Conflict                            somebody else was first; read again and decide
│   ├── StaleContinuation               the data changed between two pages of a result
│   ├── PositionConflict                an append expected another position; `current` is the next one
│   └── IdempotencyConflict             the idempotency key was used for other messages
├── InvalidStoredMessage                a stored message was changed by hand and is no message any more
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


class TooManyDeletions(CayuPgError):
    """A sync would delete a larger share of the records in scope than `max_delete` allows."""

    def __init__(self, gone: int, records: int, max_delete: float) -> None:
        super().__init__(
            f"the source lacks {gone} of {records} records, more than max_delete={max_delete} allows;"
            " nothing was deleted"
        )
        self.gone = gone
        self.records = records


class HistoryPruned(CayuPgError):
    """A search or reading as of a time whose revisions were pruned."""


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
    """The server cannot be reached, is full or shuts down, or the connection broke."""


class ConnectionLost(Unreachable):
    """The connection broke under a statement, also when the call was repeated once; nothing was written.

    In your own transaction nothing is repeated, for your rows are lost with the connection, too.
    """


class OutcomeUnknown(ConnectionLost):
    """The connection broke during the commit: all of the transaction was written, or nothing.

    Look, or repeat what may be repeated; ingests and appends with an idempotency key have been.
    """


class Conflict(CayuPgError):
    """A concurrent change won; the facts needed to decide again are on the error."""


class PositionConflict(Conflict):
    """The transcript does not end where the append expected; nothing was written."""

    def __init__(self, expected: int, current: int) -> None:
        super().__init__(f"expected to append at position {expected}, found {current} to be the next")
        self.expected = expected
        self.current = current


class IdempotencyConflict(Conflict):
    """The idempotency key was given before with other messages, which have the positions `first` to `last`."""

    def __init__(self, key: str, first: int, last: int) -> None:
        super().__init__(
            f"expected the messages that idempotency key {key[:80]!r} stands for"
            f" (positions {first} to {last}), found others; use a new key for new messages"
        )
        self.key = key
        self.first = first
        self.last = last


class InvalidStoredMessage(CayuPgError):
    """A stored row that no longer is a message; read with `on_invalid="skip"` to pass over such rows."""

    def __init__(self, transcript_id: str, position: int, reason: str) -> None:
        super().__init__(
            f"transcript {transcript_id!r}: the message at position {position} is invalid: {reason}"
        )
        self.transcript_id = transcript_id
        self.position = position
        self.reason = reason


class StaleContinuation(Conflict):
    """The data changed since the result that a continuation belongs to; search again from the start."""


class DatabaseError(CayuPgError):
    """The database refused a statement; `sqlstate` and `__cause__` say why."""

    def __init__(self, message: str, sqlstate: str | None = None) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


class QueryCanceled(DatabaseError):
    """A statement or lock timeout, or a cancellation, ended the statement."""
