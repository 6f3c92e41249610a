"""A change of the embedding model of 50,000 chunks under constant search load: failed searches, mixed spaces, times.

    python -m benchmarks.model_change PASSAGES.jsonl [CHUNKS]

Three threads search and one writes all the time. The distance of each first hit is computed again with the model
that the result says has answered: a vector of the other space would differ.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from benchmarks.bm25_scale import texts
from cayu_pg import CayuPgError, Collection, Document, Embedder, HashEmbedder, Store

SEARCHERS = 3


class Load:
    """What the threads beside the change count."""

    def __init__(self, *embedders: Embedder) -> None:
        self.embedders = {each.model: each for each in embedders}
        self.done = threading.Event()
        self.failed: list[str] = []
        self.mixed = 0
        self.answered: dict[str, int] = {}
        self.milliseconds: list[float] = []
        self.written = 0

    def search(self, collection: Collection, known: list[str], start: int) -> None:
        place = start
        while not self.done.is_set():
            text = known[place % len(known)]
            place += SEARCHERS
            began = time.perf_counter()
            try:
                result = collection.search(text, channels=["vector"], limit=1)
            except CayuPgError as error:
                self.failed.append(str(error))
                continue
            self.milliseconds.append((time.perf_counter() - began) * 1000)
            version = result.fusion.diagnostics.channels[0].index_version
            self.answered[version] = self.answered.get(version, 0) + 1
            embedder = self.embedders[version.split(":")[0]]
            question, answer = embedder.encode_documents([text, result.texts[0]])
            self.mixed += abs(1 - float(question @ answer) - result.hits[0].matches[0].raw_score) > 1e-5

    def write(self, collection: Collection) -> None:
        while not self.done.is_set():
            collection.ingest([Document(f"note {self.written} of the writer", id=f"w{self.written % 200}")])
            self.written += 1


def main(path: Path, chunks: int) -> None:
    passages = [json.loads(line)["text"] for line in path.open()]
    documents = [Document(text, id=f"{place:07}") for place, text in enumerate(texts(passages, chunks))]
    old, new = HashEmbedder(128), HashEmbedder(256)
    load = Load(old, new)
    with (
        tempfile.TemporaryDirectory() as temporary,
        Store.embedded(Path(temporary) / "data", embedder=old, next_embedder=new) as store,
    ):
        notes = store.collection("notes")
        notes.ingest(documents, chunk_size=100_000, chunk_overlap=0)
        known = [each.text for each in documents[:: max(1, chunks // 500)]]
        with ThreadPoolExecutor(SEARCHERS + 1) as pool:
            at_work = [
                pool.submit(load.search, store.collection("notes"), known, n) for n in range(SEARCHERS)
            ]
            at_work.append(pool.submit(load.write, store.collection("notes")))
            time.sleep(5)
            before = list(load.milliseconds)
            began = time.perf_counter()
            report = notes.change_embedder(new)
            seconds = time.perf_counter() - began
            during = load.milliseconds[len(before) :]
            time.sleep(5)
            load.done.set()
            for each in at_work:
                each.result()
        states = ", ".join(f"{each.model} {each.state}, {each.pending} pending" for each in notes.spaces())
    print(
        f"{report.chunks_filled:,} chunks filled in {seconds:.0f} s, index {report.indexes_built}; {states}\n"
        f"searches: {len(load.milliseconds):,} ({load.answered}), {len(load.failed)} failed {load.failed[:1]},"
        f" {load.mixed} mixing spaces; {load.written:,} ingests beside\n"
        f"median search before {median(before):.1f} ms, during the change {median(during):.1f} ms,"
        f" longest {max(during):.0f} ms"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 50_000)
