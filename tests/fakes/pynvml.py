# SPDX-License-Identifier: Apache-2.0
"""NVML of a made-up machine, described by the JSON file that ``FAKE_NVML`` names.

``{"driver": "580.1", "gpus": [{"uuid", "name", "memory", "used", "processes": [{"pid", "memory"}],
"capability", "clock", "power", "power_now", "throttled", "gpm": {number of a metric: percent},
"mig": [instances of the same form]}]}``; only ``uuid`` must be there. Without the variable there is
no driver. Processes that have ended are not listed, as the driver does.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

NVML_SUCCESS = 0
NVML_ERROR_NOT_SUPPORTED = 3
NVML_DEVICE_MIG_ENABLE = 1
NVML_CLOCK_SM = 1
NVML_TEMPERATURE_GPU = 0
NVML_FI_DEV_POWER_INSTANT = 186
NVML_GPM_METRICS_GET_VERSION = 1
NVML_GPM_METRIC_SM_UTIL = 2
NVML_GPM_METRIC_ANY_TENSOR_UTIL = 5
NVML_GPM_METRIC_DRAM_BW_UTIL = 10


class NVMLError(Exception):
    """Any error of NVML."""


@dataclass
class Memory:
    """Bytes."""

    total: int
    used: int


@dataclass
class ProcessInfo:
    """A process on a GPU."""

    pid: int
    usedGpuMemory: int | None  # noqa: N815


def _machine() -> dict:
    path = os.environ.get("FAKE_NVML")
    if not path:
        raise NVMLError("Driver Not Loaded")
    return json.loads(Path(path).read_text(encoding="utf-8"))


def nvmlInit() -> None:
    _machine()


def nvmlShutdown() -> None:
    pass


def nvmlSystemGetDriverVersion() -> str:
    return _machine().get("driver", "580.1")


def nvmlDeviceGetCount() -> int:
    return len(_machine()["gpus"])


def nvmlDeviceGetHandleByIndex(index: int) -> dict:
    gpus = _machine()["gpus"]
    if index >= len(gpus) or gpus[index].get("forbidden"):
        raise NVMLError("Insufficient Permissions")
    return gpus[index]


def nvmlDeviceGetHandleByUUID(uuid: str) -> dict:
    for gpu in _machine()["gpus"]:
        for device in (gpu, *gpu.get("mig", [])):
            if device["uuid"] == uuid:
                return device
    raise NVMLError("Not Found")


def nvmlDeviceGetUUID(handle: dict) -> str:
    return handle["uuid"]


def nvmlDeviceGetName(handle: dict) -> str:
    return handle.get("name", "NVIDIA Fake 9000")


def nvmlDeviceGetCudaComputeCapability(handle: dict) -> tuple[int, ...]:
    return tuple(handle.get("capability", (9, 0)))


def nvmlDeviceGetMemoryInfo(handle: dict) -> Memory:
    return Memory(handle.get("memory", 2**37), handle.get("used", 0))


def nvmlDeviceGetMigMode(handle: dict) -> list[int]:
    if "mig" not in handle:
        raise NVMLError("Not Supported")
    return [NVML_DEVICE_MIG_ENABLE, NVML_DEVICE_MIG_ENABLE]


def nvmlDeviceGetMaxMigDeviceCount(handle: dict) -> int:
    return 7


def nvmlDeviceGetMigDeviceHandleByIndex(handle: dict, index: int) -> dict:
    if index >= len(handle["mig"]):
        raise NVMLError("Not Found")
    return handle["mig"][index] | {"place": index}


def nvmlDeviceGetGpuInstanceId(handle: dict) -> int:
    return handle["place"] + 1


def nvmlDeviceGetComputeInstanceId(handle: dict) -> int:
    return 0


def nvmlDeviceGetComputeRunningProcesses(handle: dict) -> list[ProcessInfo]:
    return [
        ProcessInfo(row["pid"], row.get("memory"))
        for row in handle.get("processes", [])
        if row.get("hidden") or Path(f"/proc/{row['pid']}").exists()
    ]


def nvmlDeviceGetMPSComputeRunningProcesses(handle: dict) -> list[ProcessInfo]:
    raise NVMLError("Not Supported")


@dataclass
class Utilization:
    """Percent of the time in which a kernel ran, or memory was used."""

    gpu: int
    memory: int


@dataclass
class FieldValue:
    """The answer to a query by number."""

    nvmlReturn: int  # noqa: N815
    value: object


@dataclass
class Number:
    """A value of an answer."""

    uiVal: int  # noqa: N815


def nvmlDeviceGetClockInfo(handle: dict, clock: int) -> int:
    return handle.get("clock", 1980)


def nvmlDeviceGetTemperature(handle: dict, sensor: int) -> int:
    return 51


def nvmlDeviceGetPowerUsage(handle: dict) -> int:
    return handle.get("power", 398000)


def nvmlDeviceGetFieldValues(handle: dict, fields: list[int]) -> list[FieldValue]:
    now = handle.get("power_now")
    state = NVML_ERROR_NOT_SUPPORTED if now is None else NVML_SUCCESS
    return [FieldValue(state, Number(now or 0)) for _ in fields]


def nvmlDeviceGetUtilizationRates(handle: dict) -> Utilization:
    return Utilization(99, 40)


def nvmlDeviceGetCurrentClocksEventReasons(handle: dict) -> int:
    return handle.get("throttled", 0)


@dataclass
class GpmMetric:
    """One metric of a query."""

    metricId: int = 0  # noqa: N815
    nvmlReturn: int = NVML_SUCCESS  # noqa: N815
    value: float = 0.0


class c_nvmlGpmMetricsGet_t:  # noqa: N801
    """A query between two samples."""

    def __init__(self) -> None:
        self.metrics = [GpmMetric() for _ in range(8)]


@dataclass
class GpmSupport:
    """Whether a device is monitored."""

    isSupportedDevice: int  # noqa: N815


def nvmlGpmQueryDeviceSupport(handle: dict) -> GpmSupport:
    return GpmSupport(int("gpm" in handle))


def nvmlGpmSampleAlloc() -> dict:
    return {}


def nvmlGpmSampleGet(handle: dict, sample: dict) -> dict:
    return sample | handle["gpm"]


def nvmlGpmSampleFree(sample: dict) -> None:
    pass


def nvmlGpmMetricsGet(query: c_nvmlGpmMetricsGet_t) -> c_nvmlGpmMetricsGet_t:
    for metric in query.metrics[: query.numMetrics]:
        value = query.sample2.get(str(metric.metricId))
        metric.nvmlReturn = NVML_ERROR_NOT_SUPPORTED if value is None else NVML_SUCCESS
        metric.value = value or 0.0
    return query
