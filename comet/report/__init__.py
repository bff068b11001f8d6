# SPDX-License-Identifier: Apache-2.0
"""One self-contained HTML page out of figures and records."""

from comet.report.render import render

__all__ = ["render"]
