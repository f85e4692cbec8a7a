"""Commands → exit codes. Progress goes to stderr, results to stdout."""

import contextlib
import io
import os
import sys
from collections.abc import Callable

from driver.cli import bench, evidence, history, lists, machine, receipts, run, serve
from driver.cli.frame import app
from driver.errors import DriverError, Interrupted, UsageError

# Every command, in the order of the help.
COMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    "Measure": {
        "run": run.run,
        "serve": serve.serve,
        "ladder": bench.ladder_command,
        "kernels": bench.kernels_command,
        "geometry": bench.geometry_command,
        "calibrate": evidence.calibrate_command,
        "reproduce": evidence.reproduce_command,
        "replay": run.replay,
    },
    "Read receipts": {
        "report": receipts.report_command,
        "verify": receipts.verify,
        "compare": evidence.compare_command,
    },
    "Look around": {
        "doctor": machine.doctor_command,
        "setup": machine.setup,
        "build": machine.build_command,
        "presets": lists.presets_command,
        "arms": lists.arms_command,
        "schema": lists.schema,
    },
}
for panel, commands in COMMANDS.items():
    for name, command in commands.items():
        app.command(name, rich_help_panel=panel)(command)
    if panel == "Read receipts":
        app.add_typer(history.app, name="history", rich_help_panel=panel)


def main() -> None:
    """Entry point: errors become one message and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # an encoding without × or → shows ? for them
            stream.reconfigure(errors="replace")
    try:
        try:
            app()
        except SystemExit as ended:
            # Typer makes a 1 of a broken pipe, which here says that a receipt is invalid.
            if isinstance(ended.__context__, BrokenPipeError):
                raise ended.__context__ from None
            raise
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.filename is not None:  # a file, not a stream
            _complain(f"{error.filename}: {error.strerror}")
            sys.exit(UsageError.exit_code)
        # Stdout is closed or full, or stderr's reader left. The interpreter would try again at its
        # end, and complain.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            os.dup2(nowhere, sys.stderr.fileno())
        else:
            _complain(f"stdout cannot be written: {error.strerror}")
        sys.exit(UsageError.exit_code)
    except DriverError as error:
        _complain(str(error))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        _complain("interrupted")
        sys.exit(Interrupted.exit_code)


def _complain(text: str) -> None:
    """On stderr, as long as somebody reads it: the exit code stays what it is."""
    with contextlib.suppress(OSError):
        print(f"driver: {text}", file=sys.stderr, flush=True)
