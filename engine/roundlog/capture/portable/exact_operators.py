"""Operators of PyTorch that give the same bits on every machine: they move numbers, compare them, or compute what IEEE
754 rounds once."""

_MOVING = """
    _coalesced _dimI _dimV _indices _nnz _sparse_coo_tensor_unsafe _sparse_coo_tensor_with_dims
    _sparse_coo_tensor_with_dims_and_tensors _to_dense _to_sparse _values col_indices crow_indices dense_dim indices
    is_coalesced sparse_dim values
    _conj _efficientzerotensor _local_scalar_dense _neg_view _reshape_alias _reshape_copy _to_copy _unsafe_index
    _unsafe_index_put _unsafe_view alias as_strided block_diag broadcast_to cat channel_shuffle clone combinations
    complex conj constant_pad_nd copy detach diag diag_embed diagonal diagonal_copy diagonal_scatter embedding empty
    empty_like empty_permuted empty_strided expand expand_copy eye fill flip full full_like gather imag index
    index_copy index_fill index_put index_select lift lift_fresh lift_fresh_copy masked_fill masked_scatter
    masked_select new_empty new_empty_strided new_full new_ones new_zeros nonzero nonzero_static ones ones_like
    permute pixel_shuffle pixel_unshuffle put real reflection_pad1d reflection_pad2d reflection_pad3d repeat
    repeat_interleave replication_pad1d replication_pad2d replication_pad3d reshape resize resize_as resolve_conj
    resolve_neg roll rot90 scalar_tensor select select_backward select_scatter set slice slice_backward
    slice_scatter split split_with_sizes squeeze stack swapaxes t take to transpose tril triu unbind unfold
    unsafe_chunk unsafe_split unsafe_split_with_sizes unsqueeze unsqueeze_copy view view_as_complex view_as_real
    view_copy where zero zeros zeros_like
"""
_COMPARING = """
    abs all allclose amax amin aminmax any argmax argmin bucketize clamp clamp_max clamp_min copysign count_nonzero
    cummax cummin eq equal fmax fmin ge gt hardtanh heaviside isfinite isin isinf isnan isneginf isposinf kthvalue
    le leaky_relu logical_and logical_not logical_or logical_xor lt max max_pool2d_with_indices
    max_pool3d_with_indices maximum median min minimum mode nan_to_num nanmedian ne nextafter relu searchsorted sgn
    sign signbit threshold topk
"""
_ROUNDING_ONCE = """
    _unique2 add ceil div floor floor_divide fmod frac frexp ldexp mul neg reciprocal remainder round rsqrt rsub
    sqrt square sub trunc unique_consecutive unique_dim
"""

EXACT = frozenset(" ".join((_MOVING, _COMPARING, _ROUNDING_ONCE)).split())
"""Names without overload, and without the underscore of what writes in place. `add`, `sub` and `rsub` without a factor
alone: with one, some machines round once and others twice. `rsqrt` is a root and a division."""

_OF_COMPLEX = "add all any count_nonzero eq equal isfinite isinf isnan logical_not ne neg rsub sub"

EXACT_OF_COMPLEX = frozenset(f"{_MOVING} {_OF_COMPLEX}".split())
"""Operators of `EXACT` that are exact with complex numbers, too; their products and magnitudes are not."""

BY_PAIRS = frozenset(("mul", "_fft_c2c", "_fft_c2r"))
"""Operators of complex numbers that a program, which has pairs, computes as PyTorch does. Magnitudes and quotients
would overflow there, where PyTorch's do not."""

SUMMING = frozenset(("index_put", "_unsafe_index_put", "put"))
"""Operators of `EXACT` that are exact unless they accumulate fractions, which threads may add in any order."""

INTEGERS = frozenset(("random", "randint", "randint_like"))
"""Operators that draw integers: those of the Mersenne Twister, by integers alone."""
