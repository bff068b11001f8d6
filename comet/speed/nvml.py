# SPDX-License-Identifier: Apache-2.0
"""Clock, temperature and power of a GPU, read beside a measurement."""

from contextlib import contextmanager


@contextmanager
def _handle(index: int):
    import pynvml

    pynvml.nvmlInit()
    try:
        yield pynvml, pynvml.nvmlDeviceGetHandleByIndex(index)
    finally:
        pynvml.nvmlShutdown()


def sample(index: int = 0) -> dict | None:
    """SM clock in MHz, temperature in degrees C, power in W and the throttle reasons as a bit mask.

    None where the driver or its Python package does not answer: a measurement does not fail for it.
    """
    try:
        with _handle(index) as (nvml, handle):
            return {
                "sm_clock_mhz": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
                "temperature_c": nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
                "power_w": nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
                "throttle_reasons": nvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
            }
    except Exception as error:  # the package, the driver or one query is missing
        if type(error).__name__.startswith("NVMLError") or isinstance(error, ImportError):
            return None
        raise
