# SPDX-License-Identifier: Apache-2.0
"""End-to-end throughput of the engines that people run, each in its own environment."""
