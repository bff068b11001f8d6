# SPDX-License-Identifier: Apache-2.0
"""The CUDA library, compiled without a GPU."""


rule build_kernels:
    input:
        csrc_sources,
    output:
        library="build/kernels/libcomet_kernels.so",
        info="build/kernels/build.json",
    log:
        "logs/build/kernels.log",
    benchmark:
        "benchmarks/build/kernels.tsv"
    conda:
        "../../environment.yml"
    threads: 2
    params:
        architectures=config["kernels"]["architectures"],
    script:
        "../scripts/build_kernels.py"


rule kernels:
    input:
        rules.build_kernels.output.info,
