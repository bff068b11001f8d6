# SPDX-License-Identifier: Apache-2.0
"""The ``comet`` command: the workflow's steps one at a time, on paths instead of targets."""

import argparse
import contextlib
import json
import sys
from pathlib import Path

from comet import __version__
from comet.bundle.command import add_bundle
from comet.errors import UserError
from comet.integrations.serve import add_serve
from comet.measurements import Measurement, write_records
from comet.speed.command import add_bench
from comet.speed.lease_command import add_lease_options, command_gpu
from comet.speed.profile_command import add_profile


def main(arguments: list[str] | None = None) -> int:
    """Run one sub-command; returns the exit status. Bad input is one line and status 1."""
    options = _parser().parse_args(arguments)
    try:
        return options.run(options) or 0
    except UserError as error:
        print(f"comet: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="comet", description="FMPQ quantization, W4Ax kernels and KV4 of the COMET paper."
    )
    parser.add_argument("--version", action="version", version=f"comet {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in (
        _add_quantize,
        _add_evaluate,
        _add_build,
        add_bench,
        add_profile,
        add_serve,
        _add_publish,
        _add_doctor,
        add_bundle,
    ):
        add(commands)
    return parser


def _command(commands, name: str, text: str, run) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=text)
    parser.set_defaults(run=run, command=f"comet {name}")
    return parser


def _add_shared(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="YAML file laid over config/config.yaml; may be repeated",
    )
    parser.add_argument("--device", default="cpu", help="torch device (default: cpu)")
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        default="float32",
        help="arithmetic of the 16-bit parts (default: float32)",
    )
    parser.add_argument(
        "--records",
        type=Path,
        metavar="FILE",
        help="write the records here instead of printing them",
    )
    add_lease_options(parser)


def _gpu(options: argparse.Namespace, config: dict):
    """The leased GPU of a sub-command whose time is no result; nothing on the processor.

    Raises:
        UserError: the option --device numbers a GPU; or as ``comet.speed.lease.gpu_lease``.
    """
    if ":" in options.device:
        number = options.device.partition(":")[2]
        raise UserError(
            f"--device is {options.device}; choose a GPU with CUDA_VISIBLE_DEVICES={number}, "
            "--device cuda"
        )
    if options.device == "cpu":
        return contextlib.nullcontext()
    return command_gpu(options, options.command, timed=False, settings=config["gpu"])


def _add_quantize(commands) -> None:
    parser = _command(commands, "quantize", "Quantize a model folder with FMPQ.", _quantize)
    parser.add_argument("model", type=Path, help="Hugging Face model folder")
    parser.add_argument("--text", type=Path, required=True, help="calibration passages, JSON lines")
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument(
        "--checkpoint",
        choices=("fmpq", "fmpq-plus", "natural"),
        default="fmpq",
        help="permuted mixed precision, or INT4 in natural order",
    )
    _add_shared(parser)


def _quantize(options: argparse.Namespace) -> None:
    from comet.config import fmpq_section, load_config
    from comet.fmpq.options import FMPQOptions
    from comet.fmpq.pipeline import Calibration, quantize_model
    from comet.models.folder import ModelFolder

    config = load_config(options.config)
    settings = config["calibration"]
    with _gpu(options, config):
        records = quantize_model(
            ModelFolder(options.model),
            Calibration(options.text, options.text.stem, settings["windows"], settings["context"]),
            options.out,
            FMPQOptions.from_config(fmpq_section(config, options.checkpoint)),
            checkpoint=options.checkpoint,
            model=options.model.name,
            config=config,
            seed=config["seed"],
            device=options.device,
            dtype=options.dtype,
        )
    _deliver(records, options.records)


def _add_evaluate(commands) -> None:
    parser = _command(commands, "evaluate", "Token perplexity of one row of a table.", _evaluate)
    parser.add_argument("model", type=Path, help="Hugging Face model folder")
    parser.add_argument("--row", required=True, help="what is quantized, such as w16a16")
    parser.add_argument("--text", type=Path, required=True, help="passages to score, JSON lines")
    parser.add_argument("--checkpoint", type=Path, help="folder of the checkpoint of an FMPQ row")
    parser.add_argument("--context", type=int, help="tokens of a window (default: the config's)")
    parser.add_argument("--windows", help="windows, such as 0-5 (default: the config's)")
    _add_shared(parser)


def _evaluate(options: argparse.Namespace) -> None:
    from comet.accuracy.evaluate import Evaluation, evaluate_row
    from comet.config import check_windows, load_config

    config = load_config(options.config)
    settings = config["accuracy"]
    windows = options.windows or settings["windows"]
    check_windows(windows, "--windows")
    evaluation = Evaluation(
        backend=options.row,
        model=options.model.name,
        model_folder=options.model,
        dataset=options.text.stem,
        split="test",
        text=options.text,
        context=options.context or settings["context"],
        windows=windows,
        checkpoint=options.checkpoint,
        integer_windows=settings["integer_check_windows"],
        device=options.device,
        dtype=options.dtype,
    )
    with _gpu(options, config):
        records = evaluate_row(evaluation, config, config["seed"])
    _deliver(records, options.records)


def _add_build(commands) -> None:
    parser = _command(commands, "build", "Compile the CUDA library; needs no GPU.", _build)
    parser.add_argument("--out", type=Path, default=Path("build/kernels"), help="its folder")
    parser.add_argument(
        "--arch",
        nargs="+",
        default=["sm_80", "sm_90a"],
        help="GPU architectures (default: sm_80 sm_90a)",
    )
    parser.add_argument("--jobs", type=int, help="compilers at a time (default: one a core)")
    parser.add_argument(
        "--variants",
        action="store_true",
        help="also build the kernels without one of their techniques, for comet bench ablations",
    )


def _build(options: argparse.Namespace) -> None:
    from comet.kernels.build import build
    from comet.kernels.variants import VARIANTS

    archs = [name.removeprefix("sm_") for name in options.arch]
    info = build(options.out, jobs=options.jobs, archs=archs)
    if options.variants:
        for name, defines in VARIANTS.items():
            build(options.out / "variants" / name, options.jobs, defines, archs)
    print(json.dumps({key: info[key] for key in ("library", "architectures", "nvcc")}))


def _add_publish(commands) -> None:
    parser = _command(commands, "publish", "Make a run a committed reference run.", _publish)
    parser.add_argument("run_folder", type=Path, help="such as results/local-h200")
    parser.add_argument("name", help="name of the reference run, such as h200")
    parser.add_argument(
        "--keep-failed", action="store_true", help="publish failed records with their reasons"
    )


def _publish(options: argparse.Namespace) -> None:
    from comet.publish import publish

    for path in publish(options.run_folder, options.name, keep_failed=options.keep_failed):
        print(path)


def _add_doctor(commands) -> None:
    text = "What this machine has and which targets run; status 1 where the asked one cannot."
    parser = _command(commands, "doctor", text, _doctor)
    parser.add_argument("target", nargs="?", default="all", help="of snakemake (default: all)")
    parser.add_argument(
        "--configfile",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="YAML files laid over config/config.yaml, as snakemake's",
    )
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument(
        "--no-network", action="store_true", help="do not ask the package index and the hub"
    )


def _doctor(options: argparse.Namespace) -> int:
    from comet.doctor import as_text, examine

    report = examine(options.target, options.configfile, not options.no_network)
    print(json.dumps(report, indent=2) if options.json else as_text(report))
    return 0 if report["runs"] else 1


def _deliver(records: list[Measurement], path: Path | None) -> None:
    """Write records to a file, or print one JSON object a line."""
    if path is not None:
        write_records(path, records)
        return
    for record in records:
        print(json.dumps(record.as_dict()))


if __name__ == "__main__":
    sys.exit(main())
