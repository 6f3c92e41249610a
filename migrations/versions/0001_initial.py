"""The first schema: collections, records and their chunks, word statistics, transcripts, and views for people.

Revision ID: cayu_0001
Revises:
"""

from __future__ import annotations

from alembic import op

from cayu_pg.migrating import escaped, migration_target, prepare

revision = "cayu_0001"  # with a prefix, because applications have a 0001 of their own
down_revision = None
branch_labels = ("cayu",)
depends_on = None

SEQUENCES = ("collection_id_seq", "space_id_seq", "batch_id_seq", "chunk_id_seq")

TABLES = (
    """CREATE TABLE {schema}.collections (
    id BIGINT DEFAULT nextval('{schema_in_literal}.collection_id_seq'::regclass) NOT NULL,
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    text_config TEXT NOT NULL,
    analyzer TEXT NOT NULL,
    k1 DOUBLE PRECISION NOT NULL,
    b DOUBLE PRECISION NOT NULL,
    distance TEXT NOT NULL,
    quantization TEXT NOT NULL,
    active_space_id BIGINT,
    active_statistics INTEGER,
    horizon BIGINT DEFAULT 0 NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_collections PRIMARY KEY (id),
    CONSTRAINT ck_collections_tenant CHECK (tenant <> ''),
    CONSTRAINT uq_collections_tenant_name UNIQUE (tenant, name),
    CONSTRAINT uq_collections_id_tenant UNIQUE (id, tenant),
    CONSTRAINT ck_collections_name CHECK (name <> ''),
    CONSTRAINT ck_collections_bm25 CHECK (k1 >= 0 AND b BETWEEN 0 AND 1),
    CONSTRAINT ck_collections_distance CHECK (distance IN ('cosine', 'inner_product', 'l2')),
    CONSTRAINT ck_collections_quantization CHECK (quantization IN ('none', 'binary'))
)""",
    """CREATE TABLE {schema}.transcripts (
    transcript_key UUID NOT NULL,
    tenant TEXT NOT NULL,
    transcript_id TEXT NOT NULL,
    next_position BIGINT NOT NULL,
    metadata JSONB NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_transcripts PRIMARY KEY (transcript_key),
    CONSTRAINT ck_transcripts_tenant CHECK (tenant <> ''),
    CONSTRAINT ck_transcripts_transcript_id CHECK (octet_length(transcript_id) BETWEEN 1 AND 1024),
    CONSTRAINT ck_transcripts_next_position CHECK (next_position >= 0),
    CONSTRAINT ck_transcripts_metadata CHECK (jsonb_typeof(metadata) = 'object')
)""",
    "CREATE INDEX ix_transcripts_tenant_transcript_key ON {schema}.transcripts (tenant, transcript_key)",
    """CREATE TABLE {schema}.batches (
    collection_id BIGINT NOT NULL,
    batch_id BIGINT DEFAULT nextval('{schema_in_literal}.batch_id_seq'::regclass) NOT NULL,
    tenant TEXT NOT NULL,
    sequence BIGINT NOT NULL,
    recorded_at TIMESTAMP WITH TIME ZONE NOT NULL,
    chunks_added INTEGER NOT NULL,
    chunks_removed INTEGER NOT NULL,
    CONSTRAINT pk_batches PRIMARY KEY (collection_id, batch_id),
    CONSTRAINT ck_batches_tenant CHECK (tenant <> ''),
    CONSTRAINT uq_batches_collection_id_sequence UNIQUE (collection_id, sequence),
    CONSTRAINT fk_batches_collections FOREIGN KEY (collection_id, tenant)
        REFERENCES {schema}.collections (id, tenant) ON DELETE CASCADE
)""",
    """CREATE TABLE {schema}.embedding_spaces (
    collection_id BIGINT NOT NULL,
    space_id BIGINT DEFAULT nextval('{schema_in_literal}.space_id_seq'::regclass) NOT NULL,
    tenant TEXT NOT NULL,
    model TEXT NOT NULL,
    dimensions INTEGER NOT NULL,
    distance TEXT NOT NULL,
    quantization TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    state TEXT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_embedding_spaces PRIMARY KEY (collection_id, space_id),
    CONSTRAINT ck_embedding_spaces_tenant CHECK (tenant <> ''),
    CONSTRAINT fk_embedding_spaces_collections FOREIGN KEY (collection_id, tenant)
        REFERENCES {schema}.collections (id, tenant) ON DELETE CASCADE,
    CONSTRAINT ck_embedding_spaces_dimensions CHECK (dimensions BETWEEN 1 AND 16000),
    CONSTRAINT ck_embedding_spaces_distance CHECK (distance IN ('cosine', 'inner_product', 'l2')),
    CONSTRAINT ck_embedding_spaces_quantization CHECK (quantization IN ('none', 'binary')),
    CONSTRAINT ck_embedding_spaces_state CHECK (state IN ('building', 'active', 'retired'))
)""",
    """CREATE TABLE {schema}.fusion_configs (
    collection_id BIGINT NOT NULL,
    name TEXT NOT NULL,
    tenant TEXT NOT NULL,
    config JSONB NOT NULL,
    fingerprint TEXT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_fusion_configs PRIMARY KEY (collection_id, name),
    CONSTRAINT ck_fusion_configs_tenant CHECK (tenant <> ''),
    CONSTRAINT fk_fusion_configs_collections FOREIGN KEY (collection_id, tenant)
        REFERENCES {schema}.collections (id, tenant) ON DELETE CASCADE,
    CONSTRAINT ck_fusion_configs_config CHECK (jsonb_typeof(config) = 'object')
)""",
    """CREATE TABLE {schema}.records (
    collection_id BIGINT NOT NULL,
    record_id TEXT COLLATE "C" NOT NULL,
    tenant TEXT NOT NULL,
    record_type TEXT NOT NULL,
    current_revision INTEGER NOT NULL,
    deleted_at TIMESTAMP WITH TIME ZONE,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_records PRIMARY KEY (collection_id, record_id),
    CONSTRAINT ck_records_tenant CHECK (tenant <> ''),
    CONSTRAINT fk_records_collections FOREIGN KEY (collection_id, tenant)
        REFERENCES {schema}.collections (id, tenant) ON DELETE CASCADE,
    CONSTRAINT ck_records_record_id CHECK (octet_length(record_id) BETWEEN 1 AND 1024),
    CONSTRAINT ck_records_current_revision CHECK (current_revision >= 0)
)""",
    """CREATE TABLE {schema}.statistics_versions (
    collection_id BIGINT NOT NULL,
    version INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    weights_version INTEGER NOT NULL,
    chunks BIGINT NOT NULL,
    average_length DOUBLE PRECISION NOT NULL,
    newest_chunk_id BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_statistics_versions PRIMARY KEY (collection_id, version),
    CONSTRAINT ck_statistics_versions_tenant CHECK (tenant <> ''),
    CONSTRAINT fk_statistics_versions_collections FOREIGN KEY (collection_id, tenant)
        REFERENCES {schema}.collections (id, tenant) ON DELETE CASCADE
)""",
    """CREATE TABLE {schema}.transcript_appends (
    transcript_key UUID NOT NULL,
    key_hash BYTEA NOT NULL,
    tenant TEXT NOT NULL,
    messages_digest BYTEA NOT NULL,
    first_position BIGINT NOT NULL,
    last_position BIGINT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_transcript_appends PRIMARY KEY (transcript_key, key_hash),
    CONSTRAINT ck_transcript_appends_tenant CHECK (tenant <> ''),
    CONSTRAINT fk_transcript_appends_transcripts FOREIGN KEY (transcript_key)
        REFERENCES {schema}.transcripts (transcript_key) ON DELETE CASCADE,
    CONSTRAINT ck_transcript_appends_hashes CHECK (
        octet_length(key_hash) = 32 AND octet_length(messages_digest) = 32),
    CONSTRAINT ck_transcript_appends_positions CHECK (
        first_position >= 0 AND last_position >= first_position)
)""",
    """CREATE TABLE {schema}.transcript_messages (
    transcript_key UUID NOT NULL,
    position BIGINT NOT NULL,
    tenant TEXT NOT NULL,
    role TEXT NOT NULL,
    content JSONB NOT NULL,
    idempotency_key TEXT,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_transcript_messages PRIMARY KEY (transcript_key, position),
    CONSTRAINT ck_transcript_messages_tenant CHECK (tenant <> ''),
    CONSTRAINT fk_transcript_messages_transcripts FOREIGN KEY (transcript_key)
        REFERENCES {schema}.transcripts (transcript_key) ON DELETE CASCADE,
    CONSTRAINT ck_transcript_messages_position CHECK (position >= 0),
    CONSTRAINT ck_transcript_messages_role CHECK (role IN ('user', 'assistant', 'system', 'tool')),
    CONSTRAINT ck_transcript_messages_content CHECK (
        jsonb_typeof(content) = 'array' AND jsonb_array_length(content) > 0
        AND NOT jsonb_path_exists(content, 'strict $[*] ? (@.type() != "object")')),
    CONSTRAINT ck_transcript_messages_idempotency_key CHECK (char_length(idempotency_key) BETWEEN 1 AND 512)
)""",
    "CREATE INDEX ix_transcript_messages_created_at ON {schema}.transcript_messages USING brin (created_at)",
    """CREATE TABLE {schema}.chunks (
    collection_id BIGINT NOT NULL,
    chunk_id BIGINT DEFAULT nextval('{schema_in_literal}.chunk_id_seq'::regclass) NOT NULL,
    tenant TEXT NOT NULL,
    record_id TEXT COLLATE "C" NOT NULL,
    content_hash BYTEA NOT NULL,
    current BOOLEAN NOT NULL,
    metadata JSONB NOT NULL,
    text TEXT NOT NULL,
    CONSTRAINT pk_chunks PRIMARY KEY (collection_id, chunk_id),
    CONSTRAINT ck_chunks_tenant CHECK (tenant <> ''),
    CONSTRAINT uq_chunks_collection_id_content_hash_record_id UNIQUE (collection_id, content_hash, record_id),
    CONSTRAINT fk_chunks_records FOREIGN KEY (collection_id, record_id)
        REFERENCES {schema}.records (collection_id, record_id) ON DELETE CASCADE
)""",
    """CREATE TABLE {schema}.lexeme_statistics (
    collection_id BIGINT NOT NULL,
    version INTEGER NOT NULL,
    lexeme TEXT COLLATE "C" NOT NULL,
    tenant TEXT NOT NULL,
    document_frequency BIGINT NOT NULL,
    max_weight REAL NOT NULL,
    CONSTRAINT pk_lexeme_statistics PRIMARY KEY (collection_id, version, lexeme),
    CONSTRAINT ck_lexeme_statistics_tenant CHECK (tenant <> ''),
    CONSTRAINT fk_lexeme_statistics_collections FOREIGN KEY (collection_id, tenant)
        REFERENCES {schema}.collections (id, tenant) ON DELETE CASCADE
)""",
    """CREATE TABLE {schema}.message_lexemes (
    transcript_key UUID NOT NULL,
    position BIGINT NOT NULL,
    tenant TEXT NOT NULL,
    length INTEGER NOT NULL,
    truncated BOOLEAN NOT NULL,
    tsv TSVECTOR NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT pk_message_lexemes PRIMARY KEY (transcript_key, position),
    CONSTRAINT ck_message_lexemes_tenant CHECK (tenant <> ''),
    CONSTRAINT fk_message_lexemes_transcript_messages FOREIGN KEY (transcript_key, position)
        REFERENCES {schema}.transcript_messages (transcript_key, position) ON DELETE CASCADE,
    CONSTRAINT ck_message_lexemes_length CHECK (length >= 0)
)""",
    "CREATE INDEX ix_message_lexemes_tsv ON {schema}.message_lexemes USING gin (tsv)",
    "CREATE INDEX ix_message_lexemes_tenant_created_at ON {schema}.message_lexemes (tenant, created_at)",
    """CREATE TABLE {schema}.revisions (
    collection_id BIGINT NOT NULL,
    record_id TEXT COLLATE "C" NOT NULL,
    revision INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    batch_id BIGINT NOT NULL,
    record_type TEXT NOT NULL,
    title TEXT,
    content TEXT,
    content_hash BYTEA,
    digest BYTEA,
    metadata JSONB NOT NULL,
    source TEXT,
    recorded_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_revisions PRIMARY KEY (collection_id, record_id, revision),
    CONSTRAINT ck_revisions_tenant CHECK (tenant <> ''),
    CONSTRAINT fk_revisions_records FOREIGN KEY (collection_id, record_id)
        REFERENCES {schema}.records (collection_id, record_id) ON DELETE CASCADE,
    CONSTRAINT ck_revisions_metadata CHECK (jsonb_typeof(metadata) = 'object'),
    CONSTRAINT ck_revisions_content_hash CHECK ((content IS NULL) = (content_hash IS NULL))
)""",
    "CREATE INDEX ix_revisions_collection_id_batch_id ON {schema}.revisions (collection_id, batch_id)",
    """CREATE TABLE {schema}.chunk_embeddings (
    collection_id BIGINT NOT NULL,
    chunk_id BIGINT NOT NULL,
    space_id BIGINT NOT NULL,
    tenant TEXT NOT NULL,
    current BOOLEAN NOT NULL,
    embedding {extension}.vector NOT NULL,
    CONSTRAINT pk_chunk_embeddings PRIMARY KEY (collection_id, chunk_id, space_id),
    CONSTRAINT ck_chunk_embeddings_tenant CHECK (tenant <> ''),
    CONSTRAINT fk_chunk_embeddings_chunks FOREIGN KEY (collection_id, chunk_id)
        REFERENCES {schema}.chunks (collection_id, chunk_id) ON DELETE CASCADE,
    CONSTRAINT fk_chunk_embeddings_embedding_spaces FOREIGN KEY (collection_id, space_id)
        REFERENCES {schema}.embedding_spaces (collection_id, space_id) ON DELETE CASCADE
)""",
    """CREATE TABLE {schema}.chunk_lexemes (
    collection_id BIGINT NOT NULL,
    chunk_id BIGINT NOT NULL,
    weights_version INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    current BOOLEAN NOT NULL,
    length INTEGER NOT NULL,
    tsv TSVECTOR NOT NULL,
    weights {extension}.sparsevec NOT NULL,
    CONSTRAINT pk_chunk_lexemes PRIMARY KEY (collection_id, chunk_id, weights_version),
    CONSTRAINT ck_chunk_lexemes_tenant CHECK (tenant <> ''),
    CONSTRAINT fk_chunk_lexemes_chunks FOREIGN KEY (collection_id, chunk_id)
        REFERENCES {schema}.chunks (collection_id, chunk_id) ON DELETE CASCADE
)""",
    """CREATE TABLE {schema}.revision_chunks (
    collection_id BIGINT NOT NULL,
    record_id TEXT COLLATE "C" NOT NULL,
    revision INTEGER NOT NULL,
    ordinal INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    chunk_id BIGINT NOT NULL,
    start_offset INTEGER NOT NULL,
    end_offset INTEGER NOT NULL,
    CONSTRAINT pk_revision_chunks PRIMARY KEY (collection_id, record_id, revision, ordinal),
    CONSTRAINT ck_revision_chunks_tenant CHECK (tenant <> ''),
    CONSTRAINT fk_revision_chunks_revisions FOREIGN KEY (collection_id, record_id, revision)
        REFERENCES {schema}.revisions (collection_id, record_id, revision) ON DELETE CASCADE,
    CONSTRAINT fk_revision_chunks_chunks FOREIGN KEY (collection_id, chunk_id)
        REFERENCES {schema}.chunks (collection_id, chunk_id) ON DELETE CASCADE,
    CONSTRAINT ck_revision_chunks_place CHECK (ordinal >= 0 AND start_offset >= 0 AND end_offset > start_offset)
)""",
    "CREATE INDEX ix_revision_chunks_collection_id_chunk_id_revision"
    " ON {schema}.revision_chunks (collection_id, chunk_id, revision)",
)
COMMENTS = {
    "collections": {
        "": "One searchable set of documents.",
        "id": "Short key used in every other table.",
        "tenant": "Whose row this is.",
        "name": "What applications call it.",
        "text_config": "Text search configuration, by name.",
        "analyzer": "Analyzer that prepares text, with version.",
        "k1": "BM25 term saturation.",
        "b": "BM25 length normalisation.",
        "distance": "How vectors of new spaces are compared.",
        "quantization": "none or binary, for new spaces.",
        "active_space_id": "Embedding space that searches use.",
        "active_statistics": "Statistics version that searches use.",
        "horizon": "Before this sequence the history was pruned.",
        "created_at": "When the row was written.",
    },
    "transcripts": {
        "": "One conversation.",
        "transcript_key": "Hash of tenant and transcript id.",
        "tenant": "Whose row this is.",
        "transcript_id": "What applications call it.",
        "next_position": "Position of the next message.",
        "metadata": "Free to use.",
        "created_at": "When the row was written.",
    },
    "batches": {
        "": "One committed write; its sequence orders revisions.",
        "collection_id": "The collection; first in every key.",
        "batch_id": "Key of the write.",
        "tenant": "Whose row this is.",
        "sequence": "Order of commits in the collection.",
        "recorded_at": "Time of the order.",
        "chunks_added": "Chunks that came into search.",
        "chunks_removed": "Chunks that left it.",
    },
    "embedding_spaces": {
        "": "One way of turning text into vectors.",
        "collection_id": "The collection; first in every key.",
        "space_id": "Key of the space.",
        "tenant": "Whose row this is.",
        "model": "Name of the embedding model.",
        "dimensions": "Length of every vector.",
        "distance": "cosine, inner_product or l2.",
        "quantization": "What the vector index holds: none, binary.",
        "fingerprint": "SHA-256 of model, size and distance.",
        "state": "building, active or retired.",
        "created_at": "When the row was written.",
    },
    "fusion_configs": {
        "": "Named fusion configurations.",
        "collection_id": "The collection; first in every key.",
        "name": "Name given to search(fusion=...).",
        "tenant": "Whose row this is.",
        "config": "WeightedReciprocalRankFusionConfig as JSON.",
        "fingerprint": "SHA-256 of the canonical configuration.",
        "created_at": "When the row was written.",
    },
    "records": {
        "": "One document, whatever it says now.",
        "collection_id": "The collection; first in every key.",
        "record_id": "The document's own id.",
        "tenant": "Whose row this is.",
        "record_type": "Kind of document.",
        "current_revision": "0 until the first is written.",
        "deleted_at": "Set while the record is deleted.",
        "created_at": "When the row was written.",
    },
    "statistics_versions": {
        "": "What one version of the word statistics was computed from.",
        "collection_id": "The collection; first in every key.",
        "version": "Counts up with each refresh.",
        "tenant": "Whose row this is.",
        "weights_version": "The chunk_lexemes rows it reads.",
        "chunks": "Current chunks counted (N of BM25).",
        "average_length": "Mean words a chunk, of the weights.",
        "newest_chunk_id": "No newer chunk was counted.",
        "sequence": "The last write that was counted.",
        "created_at": "When the row was written.",
    },
    "transcript_appends": {
        "": "Appends that gave an idempotency key; outlives deleted messages.",
        "transcript_key": "Hash of tenant and transcript id.",
        "key_hash": "SHA-256 of the idempotency key.",
        "tenant": "Whose row this is.",
        "messages_digest": "SHA-256 of the messages.",
        "first_position": "Place in the log, from 0.",
        "last_position": "Place in the log, from 0.",
        "created_at": "When the row was written.",
    },
    "transcript_messages": {
        "": "One message of a conversation.",
        "transcript_key": "Hash of tenant and transcript id.",
        "position": "Place in the log, from 0.",
        "tenant": "Whose row this is.",
        "role": "user, assistant, system or tool.",
        "content": "The parts of the message.",
        "idempotency_key": "Key of the append that wrote it.",
        "created_at": "When the row was written.",
    },
    "chunks": {
        "": "One piece of a record's text.",
        "collection_id": "The collection; first in every key.",
        "chunk_id": "Key of the chunk.",
        "tenant": "Whose row this is.",
        "record_id": "The document's own id.",
        "content_hash": "SHA-256 of the text.",
        "current": "Whether the record's current revision holds it.",
        "metadata": "Of the current revision, for filters.",
        "text": "The piece of text that is searched.",
    },
    "lexeme_statistics": {
        "": "How often each word occurs in a collection.",
        "collection_id": "The collection; first in every key.",
        "version": "The statistics version.",
        "lexeme": "A word as tsvector keeps it.",
        "tenant": "Whose row this is.",
        "document_frequency": "Chunks that hold it.",
        "max_weight": "Largest weight in any of them.",
    },
    "message_lexemes": {
        "": "The words of messages; narrow, so that scans stay cheap.",
        "transcript_key": "Hash of tenant and transcript id.",
        "position": "Place in the log, from 0.",
        "tenant": "Whose row this is.",
        "length": "Words counted.",
        "truncated": "Only the beginning was indexed.",
        "tsv": "Words with positions.",
        "created_at": "When the words were written; orders them by age.",
    },
    "revisions": {
        "": "What a record said at one time; never changed.",
        "collection_id": "The collection; first in every key.",
        "record_id": "The document's own id.",
        "revision": "1, 2, ... within the record.",
        "tenant": "Whose row this is.",
        "batch_id": "The write that made it.",
        "record_type": "Kind of document.",
        "title": "Title, if it has one.",
        "content": "The whole text; null says the record was deleted.",
        "content_hash": "SHA-256 of the text.",
        "digest": "SHA-256 of text, title, metadata, source, type and cuts.",
        "metadata": "The document's metadata.",
        "source": "Where it came from.",
        "recorded_at": "When the row was written.",
    },
    "chunk_embeddings": {
        "": "The vectors of chunks; narrow, so that scans stay cheap.",
        "collection_id": "The collection; first in every key.",
        "chunk_id": "The chunk.",
        "space_id": "The embedding space.",
        "tenant": "Whose row this is.",
        "current": "Whether the record's current revision holds it.",
        "embedding": "The vector, float32.",
    },
    "chunk_lexemes": {
        "": "The words of chunks; narrow, so that scans stay cheap.",
        "collection_id": "The collection; first in every key.",
        "chunk_id": "The chunk.",
        "weights_version": "Version that gave the weights.",
        "tenant": "Whose row this is.",
        "current": "Whether the record's current revision holds it.",
        "length": "Words counted, stop words left out.",
        "tsv": "Words with positions, for matching.",
        "weights": "BM25 weight at the dimension of each word.",
    },
    "revision_chunks": {
        "": "Where each chunk stands in a revision.",
        "collection_id": "The collection; first in every key.",
        "record_id": "The document's own id.",
        "revision": "Revision that holds the chunk.",
        "ordinal": "Place of the chunk, from 0.",
        "tenant": "Whose row this is.",
        "chunk_id": "The chunk.",
        "start_offset": "First character in the content.",
        "end_offset": "One past the last character.",
    },
}

VIEWS = {
    "current_chunks": """
SELECT c.tenant, c.name AS collection, k.record_id, p.ordinal, r.current_revision AS revision, v.title,
       k.text, k.metadata, p.start_offset, p.end_offset, k.chunk_id, encode(k.content_hash, 'hex') AS content_hash
FROM {schema}.collections c
JOIN {schema}.records r ON r.collection_id = c.id AND r.deleted_at IS NULL
JOIN {schema}.revisions v ON v.collection_id = c.id AND v.record_id = r.record_id
     AND v.revision = r.current_revision
JOIN {schema}.revision_chunks p ON p.collection_id = c.id AND p.record_id = r.record_id
     AND p.revision = r.current_revision
JOIN {schema}.chunks k ON k.collection_id = c.id AND k.chunk_id = p.chunk_id""",
    "record_history": """
SELECT c.tenant, c.name AS collection, v.record_id, v.revision, b.sequence, b.recorded_at,
       v.content IS NULL AS deleted, v.revision = r.current_revision AS current, v.title, v.source, v.metadata,
       char_length(v.content) AS characters,
       (SELECT count(*) FROM {schema}.revision_chunks p WHERE p.collection_id = v.collection_id
        AND p.record_id = v.record_id AND p.revision = v.revision) AS chunks,
       left(v.content, 80) AS beginning
FROM {schema}.collections c
JOIN {schema}.records r ON r.collection_id = c.id
JOIN {schema}.revisions v ON v.collection_id = c.id AND v.record_id = r.record_id
JOIN {schema}.batches b ON b.collection_id = c.id AND b.batch_id = v.batch_id""",
    "transcript_text": """
SELECT t.tenant, t.transcript_id, m.position, m.role, m.created_at,
       (SELECT string_agg(part ->> 'text', E'\\n') FROM jsonb_array_elements(m.content) part
        WHERE part ->> 'type' = 'text') AS text,
       jsonb_array_length(m.content) AS parts
FROM {schema}.transcripts t
JOIN {schema}.transcript_messages m ON m.transcript_key = t.transcript_key""",
    "index_health": """
SELECT t.relname AS table_name, x.relname AS index_name, i.indisvalid AS valid, i.indisready AS ready,
       pg_relation_size(x.oid) AS bytes, coalesce(s.idx_scan, 0) AS scans, pg_get_indexdef(x.oid) AS definition
FROM pg_index i
JOIN pg_class x ON x.oid = i.indexrelid
JOIN pg_class t ON t.oid = i.indrelid
JOIN pg_namespace n ON n.oid = t.relnamespace
LEFT JOIN pg_stat_all_indexes s ON s.indexrelid = x.oid
WHERE n.nspname = {schema_literal}""",
}

VIEW_COMMENTS = {
    "current_chunks": "What searches see now, one row a chunk and place.",
    "record_history": "Every revision of every record, with its beginning.",
    "transcript_text": "The readable text of every message.",
    "index_health": "Every index of this schema: valid, size, use.",
}


def upgrade() -> None:
    """Create everything; the schema and the `vector` extension too, when absent and this role may."""
    prepare(op.get_context())
    target = migration_target(op.get_context())
    names = {
        "schema": target.schema,
        "schema_literal": target.schema_literal,
        "schema_in_literal": target.schema.replace("'", "''"),
        "extension": target.extension,
    }
    for sequence in SEQUENCES:
        run(f"CREATE SEQUENCE {target.schema}.{sequence} AS bigint")
    for statement in TABLES:
        run(statement.format_map(names))
    for table, comments in COMMENTS.items():
        for column, comment in comments.items():
            kind, name = ("COLUMN", f"{table}.{column}") if column else ("TABLE", table)
            run(f"COMMENT ON {kind} {target.schema}.{name} IS {literal(comment)}")
    for name, query in VIEWS.items():
        body = query.format_map(names)
        run(f"CREATE VIEW {target.schema}.{name} WITH (security_invoker = true) AS {body}")
        run(f"COMMENT ON VIEW {target.schema}.{name} IS {literal(VIEW_COMMENTS[name])}")


def downgrade() -> None:
    """Drop everything that upgrade created, the extension only if upgrade created it and nothing uses it."""
    target = migration_target(op.get_context())
    for name in VIEWS:
        run(f"DROP VIEW {target.schema}.{name}")
    for table in reversed(COMMENTS):
        run(f"DROP TABLE {target.schema}.{table}")
    for sequence in SEQUENCES:
        run(f"DROP SEQUENCE {target.schema}.{sequence}")
    target.drop_own_extension()


def run(statement: str) -> None:
    """Execute one statement as it stands."""
    op.execute(escaped(statement))


def literal(text: str) -> str:
    """A text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"
