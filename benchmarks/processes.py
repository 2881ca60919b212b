"""A call in a process of its own: what JAX keeps of earlier calls is no memory of this one."""

import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any


def call_apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a fresh process, and return or raise what it does; the process ends with this one."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=_end_with_parent) as worker:
        return worker.submit(function, *arguments).result()


def _end_with_parent() -> None:
    """End this process when its parent does: one that is killed cannot tell, and its pool would work on for nobody."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
