"""The agent's shared memory, mapped."""

import mmap
import os
import struct
from typing import TYPE_CHECKING, Any

from kvasir._check import read_int
from kvasir.block_types import SessionOpened
from kvasir.errors import ArenaError

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

_MAGIC = b"KVASIRSM"
_VERSION = 1
_HEADER = struct.Struct("<8sIIQQQ")


class Arena:
    """The slots of an agent on this machine, as numpy arrays. Needs `kvasir[blocks]`."""

    def __init__(self, opened: SessionOpened) -> None:
        """Use `Session.arena` to create one."""
        try:
            import numpy
        except ImportError as error:
            problem = "numpy is not installed: pip install 'kvasir[blocks]'"
            raise ArenaError(problem) from error
        self._numpy: Any = numpy
        self._opened = opened
        place = opened.arena
        if place is None:
            raise ArenaError("this agent's memory is private: use Session.read and Session.write")
        self._start, self._stride = place.start_bytes, place.stride_bytes
        size = self._start + opened.slots * self._stride
        try:
            descriptor = os.open(place.path, os.O_RDWR | os.O_CLOEXEC)
            try:
                self._map = mmap.mmap(descriptor, size)
            finally:
                os.close(descriptor)
        except (OSError, ValueError) as error:
            problem = (
                f"{place.path} can't be mapped: {error}. Engines of another machine or user use "
                "Session.read and Session.write"
            )
            raise ArenaError(problem) from error
        shape = (self._start, opened.block_bytes, self._stride, opened.slots)
        if _HEADER.unpack_from(self._map) != (_MAGIC, _VERSION, *shape):
            raise ArenaError(f"{place.path} is not the memory of this session's agent")

    def slot(self, slot: int, *, writable: bool = False) -> "NDArray[numpy.uint8]":
        """The bytes of a slot: a view, not a copy.

        Write a slot only while you lease it. Read one only while you hold its block, after
        `Session.verify`. A view stays mapped, but after the release its bytes can be another
        block's.
        """
        number = read_int("slot", slot, 0, self._opened.slots - 1)
        offset = self._start + number * self._stride
        count = self._opened.block_bytes
        view: NDArray[numpy.uint8] = self._numpy.frombuffer(
            self._map, self._numpy.uint8, count, offset
        )
        view.flags.writeable = writable
        return view
