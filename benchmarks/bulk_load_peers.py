"""One load by another library, for `bulk_load.py`: run by a Python that has it, which need not have cayu_pg.

    PYTHON benchmarks/bulk_load_peers.py NAME URL FOLDER

FOLDER holds texts.json and vectors.npy. Prints the seconds that adding the rows took; making the tables, reading the
files and turning numbers into the objects that the library takes are not counted.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

BLOCK = 1_000  # rows a call: the libraries take lists, and one INSERT of all would not fit

Texts = list[str]
Rows = list[list[float]]


def langchain_pgvector(url: str, texts: Texts, vectors: Rows) -> Callable[[], None]:
    """langchain-postgres' PGVector: one INSERT of many rows a call."""
    from langchain_postgres import PGVector

    store = PGVector(_Given(), connection=url, collection_name="bulk", embedding_length=len(vectors[0]))
    ids = [str(number) for number in range(len(texts))]

    def add() -> None:
        for start in range(0, len(texts), BLOCK):
            part = slice(start, start + BLOCK)
            store.add_embeddings(texts[part], vectors[part], ids=ids[part])

    return add


def langchain_pgvectorstore(url: str, texts: Texts, vectors: Rows) -> Callable[[], None]:
    """langchain-postgres' PGVectorStore with its hybrid search, which writes tsvectors."""
    from langchain_postgres import PGEngine, PGVectorStore
    from langchain_postgres.v2.hybrid_search_config import HybridSearchConfig

    engine = PGEngine.from_connection_string(url)
    words = HybridSearchConfig(tsv_column="content_tsv", tsv_lang="pg_catalog.english")
    engine.init_vectorstore_table("bulk", len(vectors[0]), hybrid_search_config=words)
    store = PGVectorStore.create_sync(engine, _Given(), "bulk", hybrid_search_config=words)

    def add() -> None:
        store.add_embeddings(texts, vectors)

    return add


def llama_index(url: str, texts: Texts, vectors: Rows) -> Callable[[], None]:
    """llama-index's Postgres vector store with its hybrid search, which writes tsvectors."""
    from llama_index.core.schema import TextNode
    from llama_index.vector_stores.postgres import PGVectorStore

    store = PGVectorStore.from_params(
        connection_string=url.replace("+psycopg", "+psycopg2"),
        async_connection_string=url.replace("+psycopg", "+asyncpg"),
        hybrid_search=True,
        text_search_config="english",
        embed_dim=len(vectors[0]),
    )
    store.add([TextNode(text="first", id_="first", embedding=vectors[0])])  # makes the tables
    nodes = [
        TextNode(text=text, id_=str(number), embedding=vector)
        for number, (text, vector) in enumerate(zip(texts, vectors, strict=True))
    ]

    def add() -> None:
        for start in range(0, len(nodes), BLOCK):
            store.add(nodes[start : start + BLOCK])

    return add


class _Given:
    """An embedding service that is never asked: the rows bring their vectors."""

    def embed_documents(self, texts: Texts) -> Any:
        raise NotImplementedError

    def embed_query(self, text: str) -> Any:
        raise NotImplementedError


PEERS = {"PGVector": langchain_pgvector, "PGVectorStore": langchain_pgvectorstore, "llama-index": llama_index}


def main(name: str, url: str, folder: Path) -> None:
    texts = json.loads((folder / "texts.json").read_text())
    add = PEERS[name](url, texts, np.load(folder / "vectors.npy").tolist())
    began = time.perf_counter()
    add()
    print(time.perf_counter() - began)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
