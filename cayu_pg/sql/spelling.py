"""Words of a collection that resemble one it does not know."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from cayu_pg.spelling import MIN_LENGTH, nearest, pairs_of
from cayu_pg.sql.identifiers import quoted
from cayu_pg.sql.tables import Tables, sql_text

MAX_RESEMBLING = 300
MAX_WORDS = 8  # of one question that are looked up

_RESEMBLING = """
SELECT r.lexeme, r.document_frequency
FROM (SELECT s.lexeme, s.document_frequency,
             (SELECT count(*) FROM unnest(CAST(:pairs AS text[])) p (pair) WHERE strpos(s.lexeme, p.pair) > 0) AS shared
      FROM {schema}.lexeme_statistics s
      WHERE s.collection_id = :collection_id AND s.version = :version
        AND char_length(s.lexeme) BETWEEN :shortest AND :longest) r
WHERE 4 * r.shared >= :count
ORDER BY r.shared DESC, r.document_frequency DESC, r.lexeme LIMIT {most}"""


_BY_TRIGRAMS = """
SELECT s.lexeme, s.document_frequency
FROM {schema}.lexeme_statistics s
WHERE s.collection_id = :collection_id AND s.version = :version
  AND char_length(s.lexeme) BETWEEN :shortest AND :longest
ORDER BY {trigrams}.similarity(s.lexeme, :word) DESC, s.document_frequency DESC, s.lexeme LIMIT {most}"""

_TRIGRAMS = """
SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'pg_trgm'"""


def corrections(
    conn: sa.Connection, t: Tables, collection_id: int, version: int, unknown: Sequence[str]
) -> dict[str, str]:
    """The nearest known word for each unknown one that has a near one; one statement a word.

    Words that resemble it come by pg_trgm where that is installed, else by shared pairs of characters.
    """
    trigrams = conn.scalar(sa.text(_TRIGRAMS))
    template = _RESEMBLING if trigrams is None else _BY_TRIGRAMS
    statement = sql_text(
        t, template, most=MAX_RESEMBLING, trigrams=quoted(trigrams or "").replace(":", r"\:")
    )
    found = {}
    for word in [each for each in unknown if len(each) >= MIN_LENGTH][:MAX_WORDS]:
        pairs = pairs_of(word)
        binds = {
            "collection_id": collection_id,
            "version": version,
            **({"pairs": pairs, "count": len(pairs)} if trigrams is None else {"word": word}),
            "shortest": len(word) - 2,
            "longest": len(word) + 2,
        }
        known = [(row.lexeme, row.document_frequency) for row in conn.execute(statement, binds)]
        meant = nearest(word, known)
        if meant is not None:
            found[word] = meant
    return found
