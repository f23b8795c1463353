"""Decorators that compile kernels with numba. Compiled kernels release the GIL and are cached on disk."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import numba
from llvmlite import ir
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """Compile a function on arrays at its first call and keep the machine code on disk."""
    return _compiled(function)


def inlined(function: F) -> F:
    """Compile a function so that it is inlined into the kernels that call it."""
    return _compiled(function, inline="always")


def _compiled(function: F, inline: Literal["never", "always"] = "never") -> F:
    compiled: Any = numba.njit(function, cache=True, nogil=True, error_model="numpy", inline=inline)
    compile_signature = compiled.compile

    def compile_undisturbed(signature: Any) -> Any:
        with interrupts_wait():
            return compile_signature(signature)

    compiled.compile = compile_undisturbed
    result: F = compiled
    return result


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Hold Ctrl-C back until the block ends.

    LLVM calls back into Python while it compiles or loads a kernel. An exception raised there is
    lost, and the process crashes.
    """
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[tuple[Any, ...]] = []
    signal.signal(signal.SIGINT, lambda *event: waiting.append(event))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if waiting:
        handler(*waiting[0])


def _prefetch(_: Any, array: Any, at: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        held = context.make_array(signature.args[0])(context, builder, arguments[0])
        byte, word, number = ir.IntType(8).as_pointer(), ir.IntType(64), ir.IntType(32)
        size = context.get_abi_sizeof(context.get_data_type(signature.args[0].dtype))
        offset = builder.mul(arguments[1], word(size))
        address = builder.gep(builder.bitcast(held.data, byte), [offset])
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        fetch = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        builder.call(fetch, [address, number(0), number(3), number(1)])  # for reading, keep in all caches, data
        return context.get_dummy_value()

    return numba.void(array, numba.uint64), generate


prefetch: Any = intrinsic(_prefetch)
"""A function for kernels: ``prefetch(array, at)`` loads item ``at`` of a contiguous array into the processor's cache.

``at`` is the position in the flattened array. It may be out of bounds, because nothing is read or written.
"""
