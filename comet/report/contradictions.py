# SPDX-License-Identifier: Apache-2.0
"""Where the paper, its repository and pages about it disagree, in this project's words."""

CONTRADICTIONS: tuple[tuple[str, str, str], ...] = (
    (
        "Table 1, LLaMA-2 in 16 bit",
        "5.12, 4.57 and 3.12",
        "These are values at context 4096. The quantized rows match values at context 2048, where "
        "16 bit gives 5.47, 4.88 and 3.32. Read off the table, the losses are too large by 0.35, "
        "0.31 and 0.20. The paper states no context length.",
    ),
    (
        "Table 1, weight-only rows",
        "GPTQ, AWQ, OmniQuant in W4A16",
        "Per-channel results of other papers. With groups of 128 AWQ has 5.60 instead of 6.15 on "
        "LLaMA-2-7B, so the rivals look weaker than they are.",
    ),
    (
        "Table 1, QoQ row",
        "group-wise with 128 channels",
        "The numbers are QServe's per-channel ones; with groups of 128 QServe reports 6.76 instead "
        "of 6.89 on LLaMA-3-8B.",
    ),
    (
        "Loss of full W4A4",
        "more than 5.21",
        "The smallest increase in Table 1 is 1.52 (OPT-13B); the LLaMA columns rise by 5.6 to 9.1.",
    ),
    (
        "FMPQ's gap",
        "0.04 for LLaMA-1-30B, 0.07 for 65B",
        "The first is against SmoothQuant, the second against OmniQuant.",
    ),
    (
        "Cost of the INT4 KV cache",
        "0.05",
        "W4AxKV4 minus W4Ax over Table 1 averages 0.062, between 0.02 and 0.12.",
    ),
    (
        "Kernel speed-up",
        "2.88 x (abstract), 1.48 to 2.91 x (introduction)",
        "2.88 is the mean of batches 16, 64 and 256 alone; batches 2, 4 and 8 give 1.48. The "
        "paper's own section has 2.97 at batch 64, above the range of the introduction.",
    ),
    (
        "Kernel against TRT-LLM-W4A16",
        "1.77 x at large batch",
        "The mean of about 1.03, 2.67 and 2.0. At batch 16 the W4A16 kernel is faster on 14 of 31 "
        "readable shapes.",
    ),
    (
        "End to end",
        "2.02 x over TensorRT-LLM",
        "Over its W4A16 engine, at the largest batch, with 1024 input and 512 output tokens. The "
        "other setting gives 1.63. The GeoMean bars read 1.88 and 1.61.",
    ),
    (
        "End to end, maximum",
        "3.27 x",
        "The largest bar of the image reads 3.06 (Qwen2-72B, 128/128).",
    ),
    (
        "Equal batch (Fig. 11)",
        "1.37 x over the best TensorRT-LLM",
        "The bars give 1.13 to 1.27, geometric mean 1.21; 1.35 against W8A8.",
    ),
    (
        "Batch 4 (Fig. 12)",
        "2.20 x FP16, 1.43 x W8A8",
        "True of one of the two panels; the other gives 1.93 and 1.33.",
    ),
    (
        "Kernel ablation (Fig. 13)",
        "1.69, 1.27, 1.53",
        "LLaMA-3-8B alone. LLaMA-3-70B reads 1.57, 1.23, 1.30.",
    ),
    (
        "Scheduling (Fig. 14)",
        "92.7 to 97.8 % of the W4A4 oracle",
        "The oracle's bars are absent from the image that can be read, and the gain of barrier "
        "minimisation alone is not reported.",
    ),
    (
        "Worked example (Fig. 8)",
        "256 x 256 x 384 has 18 tiles",
        "Tiles of 128 in each direction give 12; the drawing, 384 x 384 x 256, gives 18.",
    ),
    (
        "INT4 to INT8 conversion",
        "zero extension that multiplies by 16, two instructions",
        "The published code does an exact sign extension, 16 operations for 8 values.",
    ),
    (
        "Sums over blocks",
        "partial results are added",
        "Blocks have different scales, so raw INT32 sums of different blocks cannot be added. "
        "Where the paper's kernel applies the scales is not described; the published code adds "
        "raw sums and dequantizes nothing.",
    ),
    (
        "Share of W4A4 work",
        "over 84 % (algorithm), 75 % (kernel runs)",
        "The kernel runs fix 75 %, called the lower bound; the published code allows only 75 %.",
    ),
    (
        "Pages about the paper",
        "SM utilisation 45 to 76 %, loss 5.68 to 5.95, cost down 70 %",
        "Not in the paper. Table 1 has no LLaMA-1-7B, whose 16-bit perplexity 5.68 is.",
    ),
)
