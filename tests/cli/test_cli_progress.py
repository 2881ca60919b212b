"""The progress bar: loss, rate and time left in a terminal, plain lines elsewhere, silence if asked."""

import io

import pytest
from rich.console import Console

from kaffee.progress import TrainingProgress
from kaffee.training.loop import Watcher


def shown(*, terminal, quiet=False, chunks=((50, 0.5, 0), (100, 0.25, 3)), total=100):
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=140, color_system=None)
    with TrainingProgress(console, quiet=quiet) as progress:
        watcher = progress.watcher("Pretraining", total)
        watcher.compiling("one update")
        for chunk in chunks:
            watcher.advanced(*chunk)
    return out.getvalue()


def test_a_terminal_shows_the_compilation_then_loss_rate_and_time_left():
    text = shown(terminal=True)
    assert "100/100" in text
    assert "loss 0.2500" in text
    assert "3 skipped" in text
    assert "/s" in text
    assert "0:00" in text
    assert "compiling" in shown(terminal=True, chunks=())


def test_a_file_gets_plain_lines_every_tenth():
    text = shown(terminal=False, chunks=[(i, 1.0 / i, 0) for i in range(1, 101)])
    lines = text.splitlines()
    assert lines[0] == "Pretraining: compiling one update (once; a few seconds)"
    assert lines[-1] == "Pretraining: 100/100 updates, loss 0.0100"
    assert len(lines) == 12
    assert "\x1b" not in text


def test_skipped_updates_are_told():
    assert "loss nan 7 skipped" in shown(terminal=False, chunks=[(100, float("nan"), 7)])


@pytest.mark.parametrize("terminal", [True, False])
def test_quiet_is_silent(terminal):
    assert shown(terminal=terminal, quiet=True) == ""


def test_a_stage_without_updates_is_fine():
    assert isinstance(TrainingProgress(Console(file=io.StringIO()), quiet=False).watcher("Pretraining", 0), Watcher)


def test_the_bar_is_gone_after_an_error():
    progress = TrainingProgress(Console(file=io.StringIO(), force_terminal=True), quiet=False)
    with pytest.raises(KeyboardInterrupt), progress:
        raise KeyboardInterrupt
    assert not progress.progress.live.is_started
