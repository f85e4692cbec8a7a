"""Commands → exit codes. Progress goes to stderr, results to stdout."""

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
        finally:
            sys.stdout.flush()
    except OSError as error:
        # Stdout is closed or full. The interpreter would try again at its end, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            print(f"driver: stdout cannot be written: {error.strerror}", file=sys.stderr)
        sys.exit(UsageError.exit_code)
    except DriverError as error:
        print(f"driver: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("driver: interrupted", file=sys.stderr)
        sys.exit(Interrupted.exit_code)
