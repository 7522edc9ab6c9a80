"""The built-in kernels: one file per kernel, with its spec and its version for each device API."""

from __future__ import annotations

from importlib import import_module

from polymux.kernel.definition import Definition

NAMES = (
    "noop",
    "copy",
    "fill",
    "saxpy",
    "dot",
    "reduce",
    "gemm",
    "gemm_batch",
    "gemv",
    "conv2d",
    "coexec_gemm",
    "coexec_gemm_bf16",
    "coexec_gemm_tf32",
    "coexec_gemm_fp16",
    "coexec_conv2d",
    "coexec_conv2d_bf16",
    "coexec_conv2d_tf32",
    "coexec_conv2d_fp16",
    "im2col",
    "col2im",
    "transpose",
    "bias_add",
    "relu",
    "relu_gradient",
    "max_pool",
    "max_pool_gradient",
    "softmax_cross_entropy",
    "stencil",
    "hotspot_steps",
    "gaussian_step",
    "gaussian_pivots",
    "gaussian_update",
    "pathfinder_rows",
    "pair_forces",
    "needleman_wunsch",
    "particle_predict",
    "particle_cumulate",
    "particle_resample",
    "random_uniform",
    "random_normal",
)
"""The kernels, which are also the files of this folder that hold them."""


def definitions() -> tuple[Definition, ...]:
    """All built-in kernels."""
    return tuple(import_module(f"{__name__}.{name}").KERNEL for name in NAMES)
