# SPDX-License-Identifier: Apache-2.0
"""What all tests share: one thread each, and no silent skips where a marker is required."""

import os

# Tests run side by side; more threads than cores make torch many times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest  # noqa: E402

REQUIRED = {name for name in os.environ.get("COMET_REQUIRED_MARKERS", "").split(",") if name}


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Turn the skip of a test with a required marker into a failure."""
    outcome = yield
    report = outcome.get_result()
    required = REQUIRED & {mark.name for mark in item.iter_markers()}
    if report.skipped and required:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"skipped although {', '.join(sorted(required))} is required: {reason}"
