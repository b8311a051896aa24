"""Flushes that the kernel carries out by itself, while the one who asked goes on.

A flush in a thread of ours waits twice for the interpreter's lock: before it may begin and before it may say
that it is done. Beside a busy main thread that costs more than the flush. Linux can flush asynchronously
(`io_submit` with `IOCB_CMD_FDSYNC`): one system call to begin, and an eventfd that says when it is done. The
standard library has no such call, hence ctypes. Where the kernel does not have it, threads do the work.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys
from typing import Any, Self

IN_FLIGHT_MAX = 16
_SYSCALLS = {
    # (io_setup, io_destroy, io_submit, io_getevents)
    "x86_64": (206, 207, 209, 208),
    "aarch64": (0, 1, 2, 4),
}
_FDSYNC = 3
_RESFD = 1


class _Order(ctypes.Structure):
    """`struct iocb` of <linux/aio_abi.h>, on little-endian machines."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("rw_flags", ctypes.c_int),
        ("opcode", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("fd", ctypes.c_uint32),
        ("buffer", ctypes.c_uint64),
        ("bytes_count", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("event_fd", ctypes.c_uint32),
    )


class _Event(ctypes.Structure):
    """`struct io_event`."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("order", ctypes.c_uint64),
        ("result", ctypes.c_int64),
        ("result2", ctypes.c_int64),
    )


class KernelFlush:
    """Begin flushes; whoever sees `event_fd` become readable asks which of them are done."""

    def __init__(self, calls: tuple[int, int, int, int], context: Any, libc: Any, event_fd: int) -> None:
        """Use `open`."""
        _, self._destroy, self._submit, self._get_events = map(ctypes.c_long, calls)
        self._context = context
        self._call = libc.syscall
        self._in_flight: set[int] = set()
        self._order = _Order(opcode=_FDSYNC, flags=_RESFD, event_fd=event_fd)
        """The kernel reads an order only while it is being submitted: one is enough for all."""
        self._one = ctypes.c_long(1)
        self._orders = ctypes.byref(ctypes.pointer(self._order))
        self._at_most = ctypes.c_long(IN_FLIGHT_MAX)
        self._events = (_Event * IN_FLIGHT_MAX)()
        self._numbers = 0

    @classmethod
    def open(cls, event_fd: int) -> Self | None:
        """None where this machine cannot do it."""
        calls = _SYSCALLS.get(platform.machine())
        if sys.platform != "linux" or calls is None or sys.byteorder != "little":
            return None
        libc = ctypes.CDLL(None, use_errno=True)
        libc.syscall.restype = ctypes.c_long
        context = ctypes.c_ulong(0)
        if libc.syscall(ctypes.c_long(calls[0]), ctypes.c_long(IN_FLIGHT_MAX), ctypes.byref(context)) != 0:
            return None
        return cls(calls, context, libc, event_fd)

    def begin(self, fd: int) -> int | None:
        """Begin to flush an open file. A number by which it is known; None if the kernel does not take it."""
        if len(self._in_flight) == IN_FLIGHT_MAX:
            return None
        self._numbers += 1
        number = self._numbers
        self._order.data = number
        self._order.fd = fd
        if self._call(self._submit, self._context, self._one, self._orders) != 1:
            return None
        self._in_flight.add(number)
        return number

    def done(self) -> list[tuple[int, OSError | None]]:
        """Those that have ended since the last question, each with what went wrong."""
        return self._take(at_least=0) if self._in_flight else []

    def close(self) -> list[tuple[int, OSError | None]]:
        """Wait for what is in flight, and say how that ended."""
        ended = []
        while self._in_flight:
            ended += self._take(at_least=1)
        self._call(self._destroy, self._context)
        return ended

    def _take(self, at_least: int) -> list[tuple[int, OSError | None]]:
        least = ctypes.c_long(at_least)
        count = -1
        while count < 0:
            count = self._call(self._get_events, self._context, least, self._at_most, self._events, None)
            if count < 0:
                error = ctypes.get_errno()
                if error != errno.EINTR:
                    raise OSError(error, os.strerror(error))
        ended: list[tuple[int, OSError | None]] = []
        for place in range(count):
            event = self._events[place]
            number, result = event.data, event.result
            self._in_flight.remove(number)
            ended.append((number, OSError(-result, os.strerror(-result)) if result < 0 else None))
        return ended
