# SPDX-License-Identifier: Apache-2.0
"""The choices that the paper leaves open, by name, with defaults chosen by measurement."""

from dataclasses import asdict, dataclass, fields

from comet.errors import UserError
from comet.formats.activations import MODES
from comet.formats.weights import SCALE_KINDS

OUTLIER_METRICS = ("p999", "p99", "max", "mean_square")
OUTLIER_RULES = ("share", "threshold")
CHANNEL_ORDERS = ("sorted", "moved")
WEIGHT_CLIPS = ("weighted", "learned", "mse", "none")
WEIGHT_ROUNDINGS = ("gptq", "nearest")
# What FMPQ+ has over FMPQ; the default of the config's section fmpq_plus.
PLUS = {"act_zero_point": True, "act_hadamard": True, "channel_order": "moved"}


@dataclass(frozen=True)
class FMPQOptions:
    """Options of FMPQ; the comparison of their values is a table in the report.

    Attributes:
        outlier_metric: channel statistic over calibration tokens that ranks channels: 99.9 or 99
            percentile of the magnitude, maximum, or mean square.
        outlier_rule: ``share`` fills as many INT8 blocks as ``int8_share`` allows in every layer;
            ``threshold`` calls a channel an outlier when its statistic exceeds
            ``outlier_threshold`` times the layer's median, and ``int8_share`` caps the blocks.
        outlier_threshold: multiple of the median, used by the rule ``threshold``.
        int8_share: largest share of INT8 blocks of a layer input, 0..1.
        channel_order: ``sorted`` sorts normal channels by the statistic, ``moved`` keeps their
            natural order; outliers come last in both.
        act_scale: scale mode of the activations (``comet.formats.activations``).
        act_zero_point: INT4 activation blocks get a zero point.
        act_hadamard: INT4 activation blocks are rotated by a 128-point Hadamard.
        weight_scale: ``group_int`` or ``group_fp`` (``comet.formats.weights``).
        weight_symmetric: zero point fixed at 8.
        weight_clip: how the range of a weight group is found. A search for the least squared
            weight error, ``weighted`` by E[x^2] of the channel or not (``mse``); ``learned``
            against the layer's output error (``comet.fmpq.learned_clip``), as the paper has it
            from OmniQuant; ``none`` takes the whole range.
        weight_rounding: ``gptq`` or ``nearest``.
        act_noise: share of the rounding error of activations that weights are fitted to, 0..1
            (``comet.fmpq.noise``). Weights that are rounded to the nearest are not, nor those in
            natural order, which serve 16-bit activations.
        end_loss: calibration tokens count by what an error of theirs costs the model's loss
            (``comet.fmpq.end_loss``); the whole model is in memory for one backward pass. Weights
            that are rounded to the nearest after a search are not concerned.
        migration: strength of SmoothQuant's migration before the permutation, 0..1; 0 leaves it out
            (``comet.fmpq.migration``). Weights in natural order are not migrated.
        sequential: calibrate a layer on the outputs of the quantized layers before it instead of
            the 16-bit ones; twice the forward passes.
        absorb_permutation: fold the permutation of the MLP's second linear into the rows of the
            first, where that is exact.
    """

    outlier_metric: str = "p999"
    outlier_rule: str = "share"
    outlier_threshold: float = 8.0
    int8_share: float = 0.2
    channel_order: str = "sorted"
    act_scale: str = "token_block_multiple"
    act_zero_point: bool = False
    act_hadamard: bool = False
    weight_scale: str = "group_int"
    weight_symmetric: bool = False
    weight_clip: str = "weighted"
    weight_rounding: str = "gptq"
    act_noise: float = 0.5
    end_loss: bool = False
    migration: float = 0.0
    sequential: bool = False
    absorb_permutation: bool = True

    def __post_init__(self) -> None:
        for name, allowed in (
            ("outlier_metric", OUTLIER_METRICS),
            ("outlier_rule", OUTLIER_RULES),
            ("channel_order", CHANNEL_ORDERS),
            ("act_scale", MODES),
            ("weight_scale", SCALE_KINDS),
            ("weight_clip", WEIGHT_CLIPS),
            ("weight_rounding", WEIGHT_ROUNDINGS),
        ):
            if getattr(self, name) not in allowed:
                raise UserError(
                    f"fmpq.{name} is {getattr(self, name)!r}; use one of {', '.join(allowed)}"
                )
        for name in ("int8_share", "act_noise", "migration"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"fmpq.{name} is {getattr(self, name)}; use a number from 0 to 1")
        if self.outlier_threshold <= 0:
            raise UserError(
                f"fmpq.outlier_threshold is {self.outlier_threshold}; use a positive number"
            )

    @property
    def correlations(self) -> bool:
        """Weights need the whole second moment of the inputs, not only its diagonal."""
        return self.weight_rounding == "gptq" or self.weight_clip == "learned"

    @staticmethod
    def from_config(section: dict) -> "FMPQOptions":
        """Options from the config's ``fmpq`` section.

        Raises:
            UserError: an unknown key or value.
        """
        known = {field.name for field in fields(FMPQOptions)}
        for key in section:
            if key not in known:
                raise UserError(
                    f"config key fmpq.{key} is unknown; use one of {', '.join(sorted(known))}"
                )
        return FMPQOptions(**section)

    def as_dict(self) -> dict:
        """The options as plain JSON types."""
        return asdict(self)
