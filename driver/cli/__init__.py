"""Commands → exit codes. Progress goes to stderr, results to stdout."""

import io
import os
import sys

from driver.cli import bench, evidence, history, lists, machine, receipts, run, serve
from driver.cli.frame import app
from driver.errors import DriverError, Interrupted, UsageError

# Every command, in the order of the help.
for name, command in (
    ("run", run.run),
    ("serve", serve.serve),
    ("replay", run.replay),
    ("kernels", bench.kernels_command),
    ("geometry", bench.geometry_command),
    ("ladder", bench.ladder_command),
    ("verify", receipts.verify),
    ("report", receipts.report_command),
    ("compare", evidence.compare_command),
    ("reproduce", evidence.reproduce_command),
    ("calibrate", evidence.calibrate_command),
    ("build", machine.build_command),
    ("presets", lists.presets_command),
    ("arms", lists.arms_command),
    ("doctor", machine.doctor_command),
    ("setup", machine.setup),
    ("schema", lists.schema),
):
    app.command(name)(command)
app.add_typer(history.app, name="history")


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
