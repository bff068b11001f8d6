# SPDX-License-Identifier: Apache-2.0
"""COMET inside the frameworks that people run; each module imports its framework only."""
