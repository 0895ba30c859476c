# SPDX-License-Identifier: Apache-2.0
"""Slots in the host's memory whose gradients come from a GPU: the slots are pinned, gradients are copied there on a stream of their own, and behind the
copies that stream writes a ready word (proto/mailbox.h), so that no push waits for the GPU.

The driver pins pages and not addresses: where other memory comes into the place of a slot, after a restart of gaccd, it is pinned anew.
"""
from __future__ import annotations

import contextlib
from typing import Mapping, Optional

from .device import Driver
from .errors import GaccError

CHUNK = 4 << 30  # bytes of one registration, as libgacc's; a copy over two of them is refused by the driver
WORDS_AT, WORD, PAGE = 4096, 64, 4096  # the page of ready words in a mailbox, and from one word to the next


class Words:
    """The ready words of one mailbox, one for each slot."""

    def __init__(self, driver: Driver, mailbox: int):
        """`mailbox`: its address."""
        self._driver, self._page = driver, mailbox + WORDS_AT
        self._values = [0] * 8
        with driver.current():
            self._there = driver.pin(self._page, PAGE)

    def ring(self, slot: int) -> tuple[int, int]:
        """When our stream has come here, the slot is full: the number of its word, and the value that it has then. In the context."""
        self._values[slot] += 1
        self._driver.write(self._there + WORD * slot, self._values[slot])
        return slot + 1, self._values[slot]

    def close(self) -> None:
        """Before the mailbox is unmapped. A context that has failed writes nothing any more."""
        with contextlib.suppress(GaccError), self._driver.current():
            with contextlib.suppress(GaccError):
                self._driver.finish()
            self._driver.unpin(self._page)


class PinnedSlots:
    """All slots of a session."""

    def __init__(self, driver: Driver):
        self.driver = driver
        self._pinned: dict[int, list[tuple[int, int]]] = {}  # slot -> (address, bytes) of its registrations
        self._filled: set[int] = set()  # by a device, since somebody last waited for that

    def take(self, slots: Mapping[int, tuple[int, int]]) -> None:
        """slot -> (address, bytes) of its pages."""
        with self.driver.current():
            for slot, (at, length) in slots.items():
                done = self._pinned.setdefault(slot, [])
                for part in range(0, length, CHUNK):
                    n = min(CHUNK, length - part)
                    done.append((at + part, n))  # before, as Ctrl-C may come as soon as it is pinned
                    self.driver.pin(at + part, n)

    def leave(self) -> None:
        """Waits until devices have written all that was queued, on any stream. Then these pages are as others."""
        self.driver.settle()
        with self.driver.current():
            for parts in self._pinned.values():
                while parts:
                    with contextlib.suppress(GaccError):  # it was about to be pinned
                        self.driver.unpin(parts.pop()[0])
            self._pinned.clear()

    def copy(self, slot: int, to: int, source: int, n: int, stream: int) -> None:
        """n bytes at `source` on the device to address `to` in the slot, behind what is on `stream` now. Both stay as they are until the slot is ours
        again."""
        parts = self._pinned.get(slot, [])
        if not any(at <= to < at + length for at, length in parts):
            raise GaccError(f"slot {slot} is not pinned", reason="BAD_SLOT")
        self._filled.add(slot)
        with self.driver.current():
            self.driver.follow(stream)
            for at, length in parts:
                first, end = max(at, to), min(at + length, to + n)
                if first < end:
                    self.driver.bring(first, source + first - to, end - first)

    def full(self, slot: int, stream: Optional[int], words: Optional[Words], timeout: Optional[float]) -> Optional[tuple[int, int]]:
        """Of a slot that is pushed now: word and value that say when it is full; None: now. `stream`: where others have written to it, too."""
        if stream is not None:
            self._filled.add(slot)
        elif slot not in self._filled:
            return None
        return full(self.driver, slot, stream, words, timeout)

    def finish(self, timeout: Optional[float] = None) -> None:
        """All copies have been made."""
        with self.driver.current():
            self.driver.finish(timeout)
        self._filled.clear()


def full(driver: Driver, slot: int, stream: Optional[int], words: Optional[Words], timeout: Optional[float]) -> Optional[tuple[int, int]]:
    """What is on our stream, and on `stream`, completes the slot: word and value that say when; None: it has been waited for."""
    with driver.current():
        if stream is not None:
            driver.follow(stream)
        if words:
            return words.ring(slot)
        driver.finish(timeout)
    return None
