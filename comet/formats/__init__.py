# SPDX-License-Identifier: Apache-2.0
"""How numbers are stored: integer grids, nibble packing, block layouts, pages, checkpoints."""
