"""Progress of training: a live bar with loss, rate and time left in a terminal, plain lines elsewhere."""

from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.progress import Task as RichTask
from rich.text import Text

from kaffee.training.loop import Watcher


class _Rate(TextColumn):
    def __init__(self) -> None:
        super().__init__("")

    def render(self, task: RichTask) -> Text:
        speed = task.speed
        return Text("" if speed is None else f"{speed:.0f}/s" if speed >= 10 else f"{speed:.1f}/s")


class _StageWatcher(Watcher):
    """The progress of one stage."""

    def __init__(self, owner: "TrainingProgress", title: str, total: int) -> None:
        self.owner, self.title, self.total, self.last_percent = owner, title, total, -1
        self.task = owner.progress.add_task(title, total=total, loss="compiling", skipped="", start=False)

    def compiling(self, what: str) -> None:
        if not self.owner.live:
            self.owner.console.print(f"{self.title}: compiling {what} (once; a few seconds)")

    def advanced(self, update: int, loss: float, skipped: int) -> None:
        progress = self.owner.progress
        if not progress.tasks[self.task].started:
            progress.start_task(self.task)
        note = f"{skipped} skipped" if skipped else ""
        progress.update(self.task, completed=update, loss=f"loss {loss:.4f}", skipped=note)
        percent = 100 * update // self.total
        if not self.owner.live and percent // 10 > self.last_percent // 10:
            self.owner.console.print(f"{self.title}: {update}/{self.total} updates, loss {loss:.4f} {note}".rstrip())
            self.last_percent = percent


class TrainingProgress:
    """A context manager whose `watcher` is an argument of `kaffee.fitting.pipeline.fit`."""

    def __init__(self, console: Console, *, quiet: bool) -> None:
        self.console, self.quiet = console, quiet
        self.live = console.is_terminal and not quiet
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[loss]}"),
            _Rate(),
            TimeRemainingColumn(compact=True),
            TextColumn("[yellow]{task.fields[skipped]}"),
            console=console,
            disable=not self.live,
        )

    def watcher(self, title: str, total: int) -> Watcher:
        """Make the watcher of a stage; silent if quiet."""
        return Watcher() if self.quiet else _StageWatcher(self, title, total)

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()
