# SPDX-License-Identifier: Apache-2.0
"""What FMPQ is compared with, one file a method."""
