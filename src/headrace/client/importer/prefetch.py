"""Reading ahead in a thread, while who takes the items is busy: with facts of rows, or with the server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import TypeVar

Item = TypeVar("Item")

#: How many chunks are read before they are asked for.
READ_AHEAD = 2


class _End:
    """Comes after the last item, with the error that ended them, if any."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


@contextmanager
def prefetch(items: Iterator[Item], ahead: int) -> Iterator[Iterator[Item]]:
    """The same items, of which a thread makes up to ``ahead`` before they are asked for; it ends with the block."""
    ready: SimpleQueue[Item | _End] = SimpleQueue()
    free, is_over = threading.Semaphore(ahead), threading.Event()

    def read() -> None:
        try:
            while free.acquire() and not is_over.is_set():
                ready.put(next(items))
        except StopIteration:
            ready.put(_End(None))
        except BaseException as error:
            ready.put(_End(error))

    def take() -> Iterator[Item]:
        while not isinstance(item := ready.get(), _End):
            free.release()
            yield item
        if item.error is not None:
            raise item.error

    thread = threading.Thread(target=read, name="headrace-import-reader", daemon=True)
    thread.start()
    try:
        yield take()
    finally:
        is_over.set()
        free.release()
        thread.join()
