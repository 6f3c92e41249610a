"""What must hold in the tables whatever went wrong, as queries that find nothing."""

from __future__ import annotations

import sqlalchemy as sa

NEVER = {
    "a current chunk without its vector": """
        SELECT k.chunk_id FROM {s}.chunks k JOIN {s}.collections c ON c.id = k.collection_id
        WHERE k.current AND NOT EXISTS (SELECT FROM {s}.chunk_embeddings e
            WHERE (e.collection_id, e.chunk_id, e.space_id) = (k.collection_id, k.chunk_id, c.active_space_id)
              AND e.current)""",
    "a current chunk without its words": """
        SELECT k.chunk_id FROM {s}.chunks k JOIN {s}.collections c ON c.id = k.collection_id
        LEFT JOIN {s}.statistics_versions v ON (v.collection_id, v.version) = (c.id, c.active_statistics)
        WHERE k.current AND NOT EXISTS (SELECT FROM {s}.chunk_lexemes l
            WHERE (l.collection_id, l.chunk_id, l.weights_version)
                = (k.collection_id, k.chunk_id, v.weights_version) AND l.current)""",
    "a vector or words that are current beside a chunk that is not": """
        SELECT k.chunk_id FROM {s}.chunks k WHERE NOT k.current AND (
            EXISTS (SELECT FROM {s}.chunk_embeddings e
                WHERE (e.collection_id, e.chunk_id) = (k.collection_id, k.chunk_id) AND e.current)
            OR EXISTS (SELECT FROM {s}.chunk_lexemes l
                WHERE (l.collection_id, l.chunk_id) = (k.collection_id, k.chunk_id) AND l.current))""",
    "a record whose current revision is not its last": """
        SELECT r.record_id FROM {s}.records r WHERE r.current_revision IS DISTINCT FROM
            (SELECT max(v.revision) FROM {s}.revisions v
             WHERE (v.collection_id, v.record_id) = (r.collection_id, r.record_id))""",
    "a record that is deleted and has text, or the other way round": """
        SELECT r.record_id FROM {s}.records r JOIN {s}.revisions v
          ON (v.collection_id, v.record_id, v.revision) = (r.collection_id, r.record_id, r.current_revision)
        WHERE (v.content IS NULL) <> (r.deleted_at IS NOT NULL)""",
    "a revision with text and without chunks": """
        SELECT v.record_id FROM {s}.revisions v WHERE v.content IS NOT NULL AND NOT EXISTS
            (SELECT FROM {s}.revision_chunks p
             WHERE (p.collection_id, p.record_id, p.revision) = (v.collection_id, v.record_id, v.revision))""",
    "a chunk whose text is not that of its place": """
        SELECT k.chunk_id FROM {s}.revision_chunks p
        JOIN {s}.chunks k ON (k.collection_id, k.chunk_id) = (p.collection_id, p.chunk_id)
        JOIN {s}.revisions v ON (v.collection_id, v.record_id, v.revision)
                              = (p.collection_id, p.record_id, p.revision)
        WHERE substr(v.content, p.start_offset + 1, p.end_offset - p.start_offset) <> k.text""",
    "a chunk that is current though its record's revision does not hold it, or the other way round": """
        SELECT k.chunk_id FROM {s}.chunks k
        JOIN {s}.records r ON (r.collection_id, r.record_id) = (k.collection_id, k.record_id)
        WHERE k.current <> EXISTS (SELECT FROM {s}.revision_chunks p
            WHERE (p.collection_id, p.record_id, p.revision, p.chunk_id)
                = (r.collection_id, r.record_id, r.current_revision, k.chunk_id))""",
    "a revision without the write that made it": """
        SELECT v.record_id FROM {s}.revisions v WHERE NOT EXISTS (SELECT FROM {s}.batches b
            WHERE (b.collection_id, b.batch_id) = (v.collection_id, v.batch_id))""",
    "statistics or a space that a collection names and that do not exist": """
        SELECT c.name FROM {s}.collections c WHERE
            (c.active_statistics IS NOT NULL AND NOT EXISTS (SELECT FROM {s}.statistics_versions v
                WHERE (v.collection_id, v.version) = (c.id, c.active_statistics)))
            OR (c.active_space_id IS NOT NULL AND NOT EXISTS (SELECT FROM {s}.embedding_spaces e
                WHERE (e.collection_id, e.space_id) = (c.id, c.active_space_id)))""",
    "a transcript with a gap": """
        SELECT t.transcript_id FROM {s}.transcripts t JOIN {s}.transcript_messages m USING (transcript_key)
        GROUP BY t.transcript_key HAVING count(*) <> max(m.position) - min(m.position) + 1
            OR max(m.position) + 1 <> t.next_position""",
    "a message without its words": """
        SELECT m.position FROM {s}.transcript_messages m LEFT JOIN {s}.message_lexemes l
            USING (transcript_key, position) WHERE l.position IS NULL""",
    "an idempotency key whose messages are not all there": """
        SELECT a.first_position FROM {s}.transcript_appends a
        WHERE a.last_position - a.first_position + 1 <> (SELECT count(*) FROM {s}.transcript_messages m
            WHERE m.transcript_key = a.transcript_key
              AND m.position BETWEEN a.first_position AND a.last_position)""",
}


def broken(engine: sa.Engine, schema: str = "cayu") -> dict[str, list[object]]:
    """What does not hold, with the rows that show it; empty when all is well. Nobody may be writing."""
    quoted = engine.dialect.identifier_preparer.quote_identifier(schema)
    with engine.connect() as connection:
        found = {
            what: list(connection.exec_driver_sql(query.format(s=quoted)).scalars())
            for what, query in NEVER.items()
        }
    return {what: some for what, some in found.items() if some}
