# SPDX-License-Identifier: Apache-2.0
"""NVML's GPU performance monitoring: utilisation of SMs without permission for hardware counters.

Hopper and later have it. It counts between two samples of the whole GPU, so that it says nothing of
single kernels and everything of one that runs over and over.
"""

import time

METRICS = {
    "gpm_sm_utilisation": "NVML_GPM_METRIC_SM_UTIL",
    "gpm_tensor_utilisation": "NVML_GPM_METRIC_ANY_TENSOR_UTIL",
    "gpm_dram_utilisation": "NVML_GPM_METRIC_DRAM_BW_UTIL",
}
LEAST_SECONDS = 0.1  # between two samples; shorter ones are refused


class Gpm:
    """Readings of one GPU.

    Args:
        nvml: the NVML module, initialised.
        handle: of the GPU.

    Attributes:
        supported: whether the GPU and its driver have it.
    """

    def __init__(self, nvml, handle) -> None:
        self._nvml, self._handle, self._last = nvml, handle, None
        try:
            self.supported = bool(nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)
            if self.supported:
                self._last, self._time = self._sample(), time.monotonic()
        except (nvml.NVMLError, AttributeError):  # the driver or its Python package is too old
            self.supported = False

    def read(self) -> dict[str, float]:
        """Percent by name since the last reading; empty while that is too short ago."""
        if not self.supported or time.monotonic() - self._time < LEAST_SECONDS:
            return {}
        try:
            return self._since_last()
        except self._nvml.NVMLError:
            self.supported = False
            return {}

    def close(self) -> None:
        """Free the last sample."""
        if self._last is not None:
            self._nvml.nvmlGpmSampleFree(self._last)
            self._last = None

    def _since_last(self) -> dict[str, float]:
        nvml, now = self._nvml, self._sample()
        query = nvml.c_nvmlGpmMetricsGet_t()
        query.version, query.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(METRICS)
        query.sample1, query.sample2 = self._last, now
        for place, name in enumerate(METRICS.values()):
            query.metrics[place].metricId = getattr(nvml, name)
        nvml.nvmlGpmMetricsGet(query)
        nvml.nvmlGpmSampleFree(self._last)
        self._last, self._time = now, time.monotonic()
        found = zip(METRICS, query.metrics, strict=False)
        return {name: m.value for name, m in found if m.nvmlReturn == nvml.NVML_SUCCESS}

    def _sample(self):
        sample = self._nvml.nvmlGpmSampleAlloc()
        return self._nvml.nvmlGpmSampleGet(self._handle, sample)
