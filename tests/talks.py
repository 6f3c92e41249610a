"""What transcript tests share: transcripts of a store, and things to say in them."""

from __future__ import annotations

from cayu_pg.async_store import AsyncStore
from cayu_pg.async_transcript import AsyncTranscript
from cayu_pg.messages import Message
from cayu_pg.store import Store
from cayu_pg.transcript import Transcript
from cayu_pg.transcripts import MessagePage, transcript_state


def open_transcript(store: Store, transcript_id: str = "talk", tenant: str = "default") -> Transcript:
    return Transcript(store._run, transcript_state(store._state, tenant, transcript_id))


def open_async_transcript(
    store: AsyncStore, transcript_id: str = "talk", tenant: str = "default"
) -> AsyncTranscript:
    return AsyncTranscript(store._run, transcript_state(store._state, tenant, transcript_id))


def user(text: str) -> Message:
    return Message.text("user", text)


def numbered(count: int, start: int = 0) -> list[Message]:
    return [user(f"message {number}") for number in range(start, start + count)]


def texts(page: MessagePage) -> list[str]:
    return [part.text for stored in page for part in stored.message.content if part.type == "text"]


def positions(page: MessagePage) -> list[int]:
    return [stored.position for stored in page]
