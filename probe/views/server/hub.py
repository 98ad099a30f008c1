"""The pages that are open now, and for each of them the frames that it hasn't got yet.

A page that doesn't read holds nobody up: what waits for it is bounded. Beyond that it is thrown away and the page gets
everything anew, once it reads again.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any, Final

from probe.views.server.frames import END, frame

#: Bytes that may wait for one page; one keyframe is a few megabytes at most.
WAITING_BYTES: Final = 64 * 2**20

#: Pages at once.
PAGES: Final = 32


class Channel:
    """Frames on their way to one page.

    Args:
        most_bytes: Bytes that may wait.

    Attributes:
        behind: Whether frames were thrown away; whoever reads asks for everything, and sets it back.
    """

    def __init__(self, most_bytes: int = WAITING_BYTES) -> None:
        self.behind = False
        self._most_bytes = most_bytes
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._closed = False
        self._changed = threading.Condition()

    @property
    def over(self) -> bool:
        """Whether it is closed, and everything has been taken."""
        with self._changed:
            return self._closed and not self._frames

    def enqueue(self, one: bytes) -> None:
        """Add a frame. A frame larger than the limit still goes, alone."""
        with self._changed:
            if self._closed:
                return
            if self._frames and self._bytes + len(one) > self._most_bytes:
                self._frames.clear()
                self._bytes = 0
                self.behind = True
                return  # a later frame without those before it is a gap, which costs the page a look at everything
            self._frames.append(one)
            self._bytes += len(one)
            self._changed.notify()

    def next_frame(self, timeout_s: float) -> bytes | None:
        """The next frame; None where none comes in time, or none any more."""
        with self._changed:
            end = time.monotonic() + timeout_s
            while not self._frames and not self._closed:
                left = end - time.monotonic()
                if left <= 0:
                    return None
                self._changed.wait(left)
            if not self._frames:
                return None
            one = self._frames.popleft()
            self._bytes -= len(one)
            return one

    def close(self, last: bytes = b"") -> None:
        """End it, with a last frame. What waits can still be taken."""
        with self._changed:
            if last and not self._closed:
                self._frames.append(last)
                self._bytes += len(last)
            self._closed = True
            self._changed.notify_all()


class Hub:
    """All open channels.

    Attributes:
        most: The most channels at once.
    """

    def __init__(self, most: int = PAGES) -> None:
        self.most = most
        self._channels: set[Channel] = set()
        self._lock = threading.Lock()
        self._ended = False

    def __len__(self) -> int:
        return len(self._channels)

    def add(self, channel: Channel) -> bool:
        """Take a channel; False where there are too many already, or where all has ended."""
        with self._lock:
            if self._ended or len(self._channels) >= self.most:
                return False
            self._channels.add(channel)
            return True

    def remove(self, channel: Channel) -> None:
        """Forget a channel. Safe to call twice."""
        with self._lock:
            self._channels.discard(channel)

    def send(self, head: dict[str, Any], buffers: list[bytes]) -> None:
        """Send a message of the panel to every page; encoded once."""
        with self._lock:
            channels = list(self._channels)
        if channels:
            made = frame("message", buffers, head=head)
            for channel in channels:
                channel.enqueue(made)

    def end(self) -> None:
        """Tell every page that it's over."""
        with self._lock:
            self._ended = True
            channels = list(self._channels)
        for channel in channels:
            channel.close(END)
