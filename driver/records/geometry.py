"""`driver geometry`: what a step dispatches to a GPU, and in which shapes."""

from typing import Annotated, Any, Literal

from pydantic import Field

from driver.records.page import Record

Count = Annotated[int, Field(ge=0, lt=2**53)]
Extent = Annotated[int, Field(ge=1, lt=2**32)]


class Dispatch(Record):
    """Dispatches of a step that differ in their layer alone."""

    label: str = Field(description="what it computes: h.attn.qkv is that of every layer")
    op: str = Field(description="its operation, by its name in NumPy and C")
    kernel: str = Field(description="WGSL file without its ending: the pipeline")
    constants: dict[str, float] = Field(description="the pipeline's override constants")
    per_step: int = Field(ge=1)
    workgroup: tuple[Extent, Extent, Extent] = Field(description="invocations in x, y, z")
    groups: tuple[Extent, Extent, Extent] = Field(description="workgroups in x, y, z")


class GpuCalls(Record):
    """What one real step asked of WebGPU, counted in the browser."""

    dispatches: Count
    submits: Count = Field(description="without the one that reads a window's results")
    buffers: Count = Field(description="created")
    bind_groups: Count = Field(description="created")
    pipelines: Count = Field(description="created, and shader modules")


class StepGeometry(Record):
    """One preset's step."""

    preset: str
    n_layer: int
    most_dispatches: int = Field(description="22·L + 15")
    dispatches: int = Field(description="of one step, as planned")
    adding: int = Field(
        default=0, description="of them, beyond the limit: what adds the parts of cut products"
    )
    submits: int = Field(description="of one step, as planned; more than one only where a watchdog "
                         "would end a longer command buffer")  # fmt: skip
    buffers: int = Field(description="made once, when the arm opens")
    buffer_bytes: Count
    counted: GpuCalls | None = Field(description="null where no step was run")
    reason: str | None = Field(default=None, description="why none was run")
    table: tuple[Dispatch, ...] = Field(description="in the order in which a step runs them")

    @property
    def holds(self) -> bool:
        """Within the limits, and what was counted is what was planned and creates nothing."""
        planned = GpuCalls(
            dispatches=self.dispatches, submits=self.submits, buffers=0, bind_groups=0, pipelines=0
        )
        within = self.dispatches - self.adding <= self.most_dispatches
        return within and self.counted in (None, planned)


class GeometryReport(Record):
    """What `driver geometry` found."""

    format: Literal["driver-geometry/1"] = "driver-geometry/1"
    arm: str
    adapter: dict[str, Any] = Field(description="what the adapter says of itself")
    presets: tuple[StepGeometry, ...]

    @property
    def holds(self) -> bool:
        """For every preset."""
        return all(preset.holds for preset in self.presets)
