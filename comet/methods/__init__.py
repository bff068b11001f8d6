# SPDX-License-Identifier: Apache-2.0
"""What FMPQ is compared with, one file a method, all behind ``comet.methods.method.Method``."""
