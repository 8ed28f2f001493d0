"""What an aten op is: its class for the cost model, its FLOPs, its attention shape."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from emulator.cost.attention import attention_flops
from emulator.trace.schema import Attention, OpClass

GEMMS = frozenset({
    "mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "linear", "_scaled_mm", "convolution",
    "convolution_backward", "_int_mm",
})  # fmt: skip
GROUPED_GEMMS = frozenset({"_grouped_mm", "_scaled_grouped_mm"})
NORMS = frozenset({
    "native_layer_norm", "native_layer_norm_backward", "native_group_norm", "native_group_norm_backward",
    "_fused_rms_norm", "_fused_rms_norm_backward", "native_batch_norm", "native_batch_norm_backward",
})  # fmt: skip
ACTIVATIONS = frozenset({
    "silu", "silu_", "silu_backward", "gelu", "gelu_backward", "relu", "relu_", "threshold_backward", "sigmoid",
    "sigmoid_backward", "tanh", "tanh_backward", "leaky_relu", "leaky_relu_backward", "elu", "elu_backward",
})  # fmt: skip
LOSSES = frozenset({
    "_log_softmax", "_log_softmax_backward_data", "nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward",
    "nll_loss2d_backward", "mse_loss", "mse_loss_backward", "binary_cross_entropy_with_logits",
})  # fmt: skip
COPIES = frozenset({
    "copy_", "clone", "_to_copy", "cat", "stack", "fill_", "zero_", "constant_pad_nd", "slice_backward",
    "select_backward", "_foreach_copy_", "all_gather_copy_in", "split_with_sizes_copy", "chunk_cat", "_chunk_cat",
    "index_select", "index_copy", "index_copy_", "expand_copy", "zeros_like", "zeros", "ones", "ones_like", "full",
    "new_zeros",
})  # fmt: skip
ALLOCATIONS = frozenset({
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted", "set_",
})  # fmt: skip
SAME_MEMORY = frozenset({"lift_fresh", "alias", "detach"})
LOOKUPS = frozenset({"embedding", "index_select", "gather", "index"})  # read only the rows they return
OVERWRITING = frozenset({"fill_", "zero_", "copy_", "_foreach_copy_"})  # in place, without reading what was there
HOST_SYNCS = frozenset({"_local_scalar_dense", "equal", "is_nonzero"})
ATTENTIONS = frozenset({
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
})  # fmt: skip


def op_class(name: str, context: str) -> OpClass:
    """Class of an op by its name and the place it runs in: ``norm``, ``rope``, ``loss``, ``optimizer`` or none."""
    if name in GEMMS:
        return "gemm"
    if name in GROUPED_GEMMS:
        return "grouped_gemm"
    if name.removesuffix("_backward") in ATTENTIONS:
        return "attention"
    if context == "optimizer":
        return "optimizer"
    if name in NORMS or context == "norm":
        return "norm"
    if name in LOSSES or context == "loss":
        return "loss"
    if context == "rope":
        return "rope"
    if name in ACTIVATIONS:
        return "activation"
    return "copy" if name in COPIES else "pointwise"


def attention_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Attention | None:
    """Shape of an attention op (tensors are (batch, heads, length, head dim)), None for any other op."""
    name = func._overloadpacket.__name__
    if name.removesuffix("_backward") not in ATTENTIONS:
        return None
    given = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs
    query, key = given["query"], given["key"]
    batch, heads, query_length, head_dim = query.shape
    return Attention(
        batch=batch,
        heads=heads,
        kv_heads=key.shape[1],
        head_dim=head_dim,
        query_length=query_length,
        key_length=key.shape[2],
        causal=bool(given.get("is_causal", False)),
        backward=name.endswith("_backward"),
    )


def flops_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, attention: Attention | None) -> int:
    """FLOPs of an op: matmuls and convolutions by torch's registry, attention by our closed form, the rest 0."""
    if attention is not None:
        return attention_flops(attention)
    count = flop_registry.get(func._overloadpacket)
    return int(count(*args, **kwargs, out_val=out)) if count is not None else 0


def dtype_name(dtype: torch.dtype) -> str:
    """``bfloat16`` for ``torch.bfloat16``."""
    return str(dtype).removeprefix("torch.")


def nbytes(tensor: torch.Tensor) -> int:
    """Bytes of a tensor that exist: dims that ``expand`` repeats (stride 0) count once."""
    count: int = tensor.element_size()
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride else min(size, 1)
    return count


def changed_bytes(
    target: torch.Tensor, indices: list[torch.Tensor | None], values: torch.Tensor, accumulate: bool = False
) -> int | None:
    """Bytes of ``target`` that ``index_put_`` changes; None where a mask decides, so that only the data can tell."""
    given = [index for index in indices if index is not None]
    if any(index.dtype in (torch.bool, torch.uint8) for index in given):
        return None
    rest = [size for i, size in enumerate(target.shape) if i >= len(indices) or indices[i] is None]
    places = torch.broadcast_shapes(*(index.shape for index in given))
    changed: int = target.element_size() * math.prod(places) * math.prod(rest)
    return changed


def tensors(tree: Any) -> list[torch.Tensor]:
    """All tensors of a nest of arguments."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
