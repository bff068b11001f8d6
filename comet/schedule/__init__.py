# SPDX-License-Identifier: Apache-2.0
"""How output tiles are shared out over a GPU's multiprocessors (paper, section 4.4)."""
