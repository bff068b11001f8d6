# SPDX-License-Identifier: Apache-2.0
"""Records joined by kind, figures drawn from them, and the report."""


rule gather:
    input:
        gathered,
    output:
        result_path("{kind}.jsonl"),
    log:
        log_path("gather", "{kind}.log"),
    wildcard_constraints:
        kind="|".join(KINDS),
    conda:
        "../../environment.yml"
    params:
        besides=gathered_besides,
    script:
        "../scripts/gather.py"


rule draw_figure:
    input:
        records=figure_records,
        references=figure_references,
        tables=figure_tables,
        arrays=figure_arrays,
    output:
        svg=report(
            result_path("figures", "{figure}.svg"),
            caption="../report/figure.rst",
            category="Figures and tables",
            labels={"figure": "{figure}"},
        ),
        png=result_path("figures", "{figure}.png"),
    log:
        log_path("figures", "{figure}.log"),
    conda:
        "../../environment.yml"
    params:
        caption=figure_caption,
        paper=repository_path("resources", "paper"),
        paper_item=figure_item,
    script:
        "../scripts/draw_figure.py"


rule render_report:
    input:
        figures=figure_paths(DRAWN),
        records=gathered_kinds([*RECORD_KINDS, "kvcache", "protocol"]),
        choices=gathered_kinds(["choices"]) or reference_files(["choices"]),
        references=reference_files([*RECORD_KINDS, "kvcache", "protocol"]),
        profiles=engine_profiles(),
    output:
        own_path("report.html"),
    log:
        f"logs/{MACHINE}/report.log",
    conda:
        "../../environment.yml"
    params:
        machine=MACHINE,
        config_name=" + ".join(Path(path).name for path in workflow.configfiles),
        paper=repository_path("resources", "paper"),
    script:
        "../scripts/render_report.py"


rule report:
    input:
        rules.render_report.output,


for figure in FIGURES:

    rule:
        name:
            figure
        input:
            figure_paths([figure]),
