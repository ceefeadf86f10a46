"""Server-sent events: what one window does, all of them hear."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

KEEP_ALIVE_S = 15.0
MOST_WAITING = 1000  # events that a window may be behind before it is given up


class Hub:
    """Hands events on to every window that listens; :meth:`tell` may be called by any thread."""

    def __init__(self) -> None:
        self._listeners: set[asyncio.Queue[str | None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    def tell(self, event: dict[str, Any]) -> None:
        """Send an event, as JSON, to all who listen."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._spread, f"data: {json.dumps(event)}\n\n")

    def close(self) -> None:
        """End all streams, so that the server can end."""
        self._closed = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._spread, None)

    async def listen(self) -> AsyncIterator[str]:
        """Yield events in the format of server-sent events, and a comment now and then so that the line stays open."""
        self._loop = asyncio.get_running_loop()
        queue: asyncio.Queue[str | None] = asyncio.Queue(MOST_WAITING)
        self._listeners.add(queue)
        try:
            yield ": connected\n\n"
            while not self._closed:
                try:
                    event = await asyncio.wait_for(queue.get(), KEEP_ALIVE_S)
                except TimeoutError:
                    event = ": still here\n\n"
                if event is None:
                    return
                yield event
        finally:
            self._listeners.discard(queue)

    def _spread(self, event: str | None) -> None:
        for queue in list(self._listeners):
            if queue.full():  # it will ask anew, and then for everything
                self._listeners.discard(queue)
                queue.get_nowait()
                queue.put_nowait(None)
            else:
                queue.put_nowait(event)
