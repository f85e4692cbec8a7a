"""What a step dispatches, as text."""

from rich.console import Console

from driver.records import GeometryReport, StepGeometry
from driver.report.terminal import TextTable, new_console, text_of, write_line


def geometry(found: GeometryReport, width: int = 100, colour: bool = False) -> str:
    """What `driver geometry` found: a line per preset, then every preset's dispatches."""
    console = new_console(width, colour)
    names = (found.adapter.get("vendor"), found.adapter.get("architecture"))
    on = " ".join(str(name) for name in names if name)
    write_line(console, f"{found.arm} on {on or 'an adapter without a name'}", "bold")
    console.print()
    console.print(_presets_table(found))
    for preset in found.presets:
        if preset.reason:
            write_line(console, f"{preset.preset}: no step was run: {preset.reason}")
        if not preset.holds:
            write_line(console, f"FAIL: {preset.preset}: beyond the limits", "bold red")
    for preset in found.presets:
        console.print()
        write_line(console, f"dispatches of {preset.preset}", "bold")
        _dispatches(console, preset)
    return text_of(console)


def _presets_table(found: GeometryReport) -> TextTable:
    cut = any(preset.adding for preset in found.presets)
    headings = ("a step of", "L", "dispatches", "most", *(["adding parts"] if cut else []),
                "submits", "created in it: buffers", "bind groups", "pipelines", "buffers in all",
                "MiB")  # fmt: skip
    table = TextTable(headings, headings[:1])
    for preset in found.presets:
        counted = preset.counted
        made = ("?", "?", "?")
        if counted:
            made = (str(counted.buffers), str(counted.bind_groups), str(counted.pipelines))
        table.add(
            preset.preset, str(preset.n_layer), str(preset.dispatches - preset.adding),
            str(preset.most_dispatches), *([f"+{preset.adding}"] if cut else []),
            str(preset.submits), *made, str(preset.buffers),
            f"{preset.buffer_bytes / 2**20:,.0f}",
        )  # fmt: skip
    return table


def _dispatches(console: Console, preset: StepGeometry) -> None:
    headings = ("dispatch", "operation", "pipeline", "a step", "workgroup", "workgroups")
    table = TextTable(headings, headings[:3])
    for row in preset.table:
        table.add(
            row.label, row.op, row.kernel, str(row.per_step),
            "x".join(map(str, row.workgroup)), "x".join(map(str, row.groups)),
        )  # fmt: skip
    console.print(table)
