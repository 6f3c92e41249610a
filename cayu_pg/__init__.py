"""cayu_pg: a retrieval store in the Postgres you already run.

pgvector and BM25 on tsvector, fused by an auditable weighted reciprocal-rank fusion; chat transcripts as validated
JSONB rows. Start with `Store` (or `AsyncStore`), `Collection.ingest` and `Collection.search`.
"""

from cayu_pg.appending import AppendResult
from cayu_pg.async_collection import AsyncCollection
from cayu_pg.async_store import AsyncStore
from cayu_pg.async_transcript import AsyncTranscript
from cayu_pg.calibration import CalibrationReport
from cayu_pg.changing_model import ChangeProgress, EmbedderChange
from cayu_pg.collection import Collection
from cayu_pg.context import format_context
from cayu_pg.embedding import Embedder, HashEmbedder, SentenceTransformerEmbedder
from cayu_pg.errors import (
    CayuPgError,
    Conflict,
    ConnectionLost,
    DatabaseError,
    DimensionMismatch,
    HistoryPruned,
    IdempotencyConflict,
    InvalidFilter,
    InvalidInput,
    InvalidStoredMessage,
    MissingDependency,
    MissingExtension,
    NotFound,
    NotMigrated,
    OutcomeUnknown,
    PositionConflict,
    QueryCanceled,
    SchemaError,
    SchemaTooNew,
    StaleContinuation,
    TooManyDeletions,
    Unreachable,
)
from cayu_pg.evaluating import EvaluationReport, JudgedQuery
from cayu_pg.evaluation import Difference, Evaluation
from cayu_pg.features import NumericField, Recency
from cayu_pg.filters import from_mongo
from cayu_pg.findings import DoctorReport, Finding
from cayu_pg.fused import (
    FusedChannelMatch,
    FusedRetrievalCandidate,
    RetrievalChannelDiagnostics,
    RetrievalFusionDiagnostics,
    RetrievalFusionResult,
)
from cayu_pg.fusion import (
    WEIGHTED_RECIPROCAL_RANK_FUSION_VERSION,
    WeightedReciprocalRankFusion,
    WeightedReciprocalRankFusionConfig,
)
from cayu_pg.ingesting import IngestProgress, IngestReport
from cayu_pg.message_formats import from_anthropic_conversation, from_openai_conversation
from cayu_pg.message_search import MessageHit, message_channel
from cayu_pg.messages import (
    CitationPart,
    CitationProvenance,
    FilePart,
    HostedToolCallPart,
    Message,
    MessageRole,
    PeerContentPart,
    ProviderStatePart,
    StructuredOutputPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    WebSearchAction,
    WebSearchAPISource,
    WebSearchSource,
    copy_message,
    detach_message,
)
from cayu_pg.migrating import migrate
from cayu_pg.query import ChannelDiagnostics, SearchDiagnostics, SearchHit, SearchResult
from cayu_pg.rag import ingest, retrieve
from cayu_pg.ranking import RankedRetrievalChannel, RankedRetrievalHit, RetrievalCandidateIdentity
from cayu_pg.recall import RecallReport
from cayu_pg.records import Document, Record, Revision
from cayu_pg.reranking import DEFAULT_RERANK_MODEL, CrossEncoderReranker, Reranker, rerank
from cayu_pg.revising import SyncReport
from cayu_pg.splitting import split_text
from cayu_pg.sql.collections import CollectionSummary
from cayu_pg.sql.model_change import EmbeddingSpace
from cayu_pg.store import Store
from cayu_pg.transcript import Transcript
from cayu_pg.transcripts import StoredMessage
from cayu_pg.tuning import TuningReport
from cayu_pg.writing import Refusal

__version__ = "0.1.0"

__all__ = [
    "DEFAULT_RERANK_MODEL",
    "WEIGHTED_RECIPROCAL_RANK_FUSION_VERSION",
    "AppendResult",
    "AsyncCollection",
    "AsyncStore",
    "AsyncTranscript",
    "CalibrationReport",
    "CayuPgError",
    "ChangeProgress",
    "ChannelDiagnostics",
    "CitationPart",
    "CitationProvenance",
    "Collection",
    "CollectionSummary",
    "Conflict",
    "ConnectionLost",
    "CrossEncoderReranker",
    "DatabaseError",
    "Difference",
    "DimensionMismatch",
    "DoctorReport",
    "Document",
    "Embedder",
    "EmbedderChange",
    "EmbeddingSpace",
    "Evaluation",
    "EvaluationReport",
    "FilePart",
    "Finding",
    "FusedChannelMatch",
    "FusedRetrievalCandidate",
    "HashEmbedder",
    "HistoryPruned",
    "HostedToolCallPart",
    "IdempotencyConflict",
    "IngestProgress",
    "IngestReport",
    "InvalidFilter",
    "InvalidInput",
    "InvalidStoredMessage",
    "JudgedQuery",
    "Message",
    "MessageHit",
    "MessageRole",
    "MissingDependency",
    "MissingExtension",
    "NotFound",
    "NotMigrated",
    "NumericField",
    "OutcomeUnknown",
    "PeerContentPart",
    "PositionConflict",
    "ProviderStatePart",
    "QueryCanceled",
    "RankedRetrievalChannel",
    "RankedRetrievalHit",
    "RecallReport",
    "Recency",
    "Record",
    "Refusal",
    "Reranker",
    "RetrievalCandidateIdentity",
    "RetrievalChannelDiagnostics",
    "RetrievalFusionDiagnostics",
    "RetrievalFusionResult",
    "Revision",
    "SchemaError",
    "SchemaTooNew",
    "SearchDiagnostics",
    "SearchHit",
    "SearchResult",
    "SentenceTransformerEmbedder",
    "StaleContinuation",
    "Store",
    "StoredMessage",
    "StructuredOutputPart",
    "SyncReport",
    "TextPart",
    "ThinkingPart",
    "TooManyDeletions",
    "ToolCallPart",
    "ToolResultPart",
    "Transcript",
    "TuningReport",
    "Unreachable",
    "WebSearchAPISource",
    "WebSearchAction",
    "WebSearchSource",
    "WeightedReciprocalRankFusion",
    "WeightedReciprocalRankFusionConfig",
    "__version__",
    "copy_message",
    "detach_message",
    "format_context",
    "from_anthropic_conversation",
    "from_mongo",
    "from_openai_conversation",
    "ingest",
    "message_channel",
    "migrate",
    "rerank",
    "retrieve",
    "split_text",
]
