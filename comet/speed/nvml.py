# SPDX-License-Identifier: Apache-2.0
"""Clock, temperature, power and load of a GPU: read beside a measurement, or all the while."""

import contextlib
import threading
import time
from contextlib import contextmanager

from comet.errors import UserError
from comet.speed.devices import handle_of, nvml_session, visible_gpus
from comet.speed.nvml_gpm import Gpm

THROTTLE_REASONS = {
    1: "idle",
    2: "application clocks setting",
    4: "power cap",
    8: "hardware slowdown",
    16: "sync boost",
    32: "temperature, by software",
    64: "temperature, by hardware",
    128: "power brake",
    256: "display clock setting",
}
SLOWED = 4 | 8 | 32 | 64 | 128  # what makes a kernel slower than the card can be


@contextmanager
def _current_gpu():
    """NVML and its handle of the first GPU that CUDA may use, the one that torch computes on."""
    with nvml_session() as nvml:
        yield nvml, handle_of(nvml, visible_gpus(nvml)[0])


def sample() -> dict | None:
    """SM clock in MHz, temperature in degrees C, power in W and the throttle reasons as a bit mask.

    None where the driver or its Python package does not answer: a measurement does not fail for it.
    """
    try:
        with _current_gpu() as (nvml, handle):
            return {
                "sm_clock_mhz": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
                "temperature_c": nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
                "power_w": nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
                "throttle_reasons": nvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
            }
    except UserError:
        return None


def reason_names(mask: int) -> list[str]:
    """The throttle reasons of a bit mask in words."""
    return [name for bit, name in THROTTLE_REASONS.items() if mask & bit]


class Watch:
    """Reads a GPU in a thread while the block runs.

    Args:
        seconds: between two readings.
        counters: also read those of ``comet.speed.nvml_gpm``.

    Attributes:
        readings: when (seconds since the epoch) and what: ``sm_clock`` in MHz, ``power`` in W,
            ``temperature`` in degrees C, ``gpu_utilisation`` and ``memory_utilisation`` in percent
            (of the time in which some kernel ran, or memory was read or written),
            ``throttle_reasons`` bit masks, and the counters. What the GPU does not tell is absent.
        missing: why there are no readings, or None.
    """

    def __init__(self, seconds: float = 0.02, counters: bool = True) -> None:
        self.readings: list[tuple[float, dict[str, float]]] = []
        self.missing: str | None = None
        self._seconds, self._counters = seconds, counters
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._done.set()
        self._thread.join()
        if not self.readings and not self.missing:
            self.missing = "NVML gave no reading while the kernel ran; watch it for longer"

    def _run(self) -> None:
        try:
            with _current_gpu() as (nvml, handle):
                gpm = Gpm(nvml, handle) if self._counters else None
                while not self._done.wait(self._seconds):
                    found = _reading(nvml, handle) | (gpm.read() if gpm else {})
                    self.readings.append((time.time(), found))
                if gpm:
                    gpm.close()
        except UserError as error:
            self.missing = str(error)

    @property
    def samples(self) -> dict[str, list[float]]:
        """All readings by name."""
        return self.between(0.0, float("inf"))

    def between(self, begin: float, end: float) -> dict[str, list[float]]:
        """The readings of a stretch of time by name; seconds since the epoch."""
        found: dict[str, list[float]] = {}
        for when, reading in self.readings:
            if begin <= when <= end:
                for name, value in reading.items():
                    found.setdefault(name, []).append(value)
        return found


def _reading(nvml, handle) -> dict[str, float]:
    queries = {
        "sm_clock": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        "power": lambda: _power(nvml, handle),
        "temperature": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        "gpu_utilisation": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
        "memory_utilisation": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).memory,
        "throttle_reasons": lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
    }
    found = {}
    for name, query in queries.items():
        with contextlib.suppress(nvml.NVMLError):
            found[name] = query()
    return found


def _power(nvml, handle) -> float:
    """Power in W: of this moment where the driver tells it, else its mean over a second."""
    with contextlib.suppress(nvml.NVMLError):
        field = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_POWER_INSTANT])[0]
        if field.nvmlReturn == nvml.NVML_SUCCESS:
            return field.value.uiVal / 1000
    return nvml.nvmlDeviceGetPowerUsage(handle) / 1000
