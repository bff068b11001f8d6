# SPDX-License-Identifier: Apache-2.0
"""The CUDA library, compiled without a GPU."""


rule kernels:
    input:
        "build/kernels/build.json",


rule build_kernels:
    input:
        sources=csrc_sources(),
    output:
        "build/kernels/build.json",
    log:
        "logs/build/kernels.log",
    conda:
        "../../environment.yml"
    threads: 2
    params:
        architectures=config["kernels"]["architectures"],
    script:
        "../scripts/build_kernels.py"
