"""Tensor, state and data roots: which bytes they bind, and which tensors have none."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from roundlog.commitments import (
    CommitmentError,
    MerkleTree,
    canonical,
    state_root,
    tensor_bytes,
    tensor_root,
    tensor_tree,
    verify,
)

VECTORS = json.loads((Path(__file__).resolve().parents[1] / "vectors" / "merkle.json").read_text())


def oracle_root(data: bytes) -> bytes:
    return MerkleTree([data[i : i + 1024] for i in range(0, len(data), 1024)] or [b""]).root


@pytest.mark.parametrize("vector", VECTORS["tensors"], ids=lambda v: f"{len(v['bytes']) // 2 - 1} bytes")
def test_tensor_roots_of_the_shared_vectors(vector: dict[str, str]) -> None:
    data = bytes.fromhex(vector["bytes"][2:])
    assert "0x" + oracle_root(data).hex() == vector["root"]
    assert "0x" + tensor_root(torch.tensor(list(data), dtype=torch.uint8)).hex() == vector["root"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (7, 3, 5), (300, 3), (0, 4)])
def test_a_tensor_and_its_numpy_array_have_the_root_of_their_little_endian_bytes(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    tensor = (torch.arange(int(np.prod(shape))).reshape(shape) % 2).to(dtype)
    array = tensor.numpy()
    expected = oracle_root(array.astype(array.dtype.newbyteorder("<")).tobytes())
    assert tensor_root(tensor) == tensor_root(array) == expected


def test_strides_and_byte_order_do_not_change_a_root() -> None:
    tensor = torch.arange(600, dtype=torch.float32).reshape(20, 30)
    root = tensor_root(tensor)
    assert tensor_root(tensor.t().contiguous().t()) == root
    assert tensor_root(tensor.numpy().astype(">f4")) == root
    assert tensor_root(np.asfortranarray(tensor.numpy())) == root
    assert tensor_root(tensor.t()) != root
    assert tensor_root(tensor.requires_grad_()) == root


def test_the_sign_of_zero_is_bound() -> None:
    assert tensor_root(torch.tensor([0.0])) != tensor_root(torch.tensor([-0.0]))
    assert bytes(tensor_bytes(torch.tensor([-0.0]))) == b"\x00\x00\x00\x80"


def test_infinities_have_a_root_and_of_nan_only_the_canonical_one() -> None:
    tensor = torch.ones(5000)
    tensor[3] = torch.inf
    tensor_root(tensor)
    tensor[4999] = torch.nan
    tensor_root(tensor)
    with pytest.raises(CommitmentError, match="NaN"):
        tensor_root(tensor.double())
    tensor.view(torch.int32)[[7, 8]] = torch.tensor([0x7FC00001, -(2**22)], dtype=torch.int32)
    for values in (tensor, tensor.numpy()):
        with pytest.raises(CommitmentError, match="a NaN other than 0x7fc00000 has no root"):
            tensor_root(values)
    one = canonical(tensor)
    assert one.view(torch.int32)[[7, 8, 4999]].tolist() == [0x7FC00000] * 3
    assert torch.equal(one[9:4999], tensor[9:4999]) and tensor_root(one) == tensor_root(canonical(one))
    finite, flags = torch.ones(3), torch.tensor([True])
    assert canonical(finite) is finite and canonical(flags) is flags


@pytest.mark.parametrize(("dtype", "nan"), [(torch.bfloat16, 0x7FC0), (torch.float16, 0x7E00)])
def test_numbers_of_16_bits_are_committed_to_in_two_bytes_each(dtype: torch.dtype, nan: int) -> None:
    words = np.arange(1 << 16, dtype=np.uint16)
    tensor = torch.from_numpy(words.view(np.int16)).view(dtype)
    finite = tensor[tensor.isfinite()]
    assert bytes(tensor_bytes(finite)) == words[tensor.isfinite().numpy()].astype("<u2").tobytes()
    assert tensor_tree(finite[:512]).count == 1 and tensor_tree(finite[:513]).count == 2
    assert tensor_root(finite) == tensor_root(finite.view(-1, 2)) == tensor_root(finite.view(torch.int16))
    assert tensor_root(torch.zeros(0, dtype=dtype)) == tensor_root(torch.zeros(0))
    for wrong in {nan, nan | 0x8000, nan - 1, nan + 1, 0x7FFF, 0xFFFF} - {nan}:
        one = torch.cat([finite[:700], torch.from_numpy(np.array([wrong], np.uint16).view(np.int16)).view(dtype)])
        if bool(one.isnan().any()):
            with pytest.raises(CommitmentError, match=f"a NaN other than {nan:#x} has no root"):
                tensor_root(one)
            right = canonical(one)
            assert torch.equal(right[:700], one[:700]) and bytes(tensor_bytes(right))[-2:] == nan.to_bytes(2, "little")
    assert canonical(finite) is finite


def test_a_bool_that_is_neither_0_nor_1_has_no_root() -> None:
    for values in (torch.tensor([0, 2], dtype=torch.uint8).view(torch.bool), np.array([0, 2], np.uint8).view(np.bool_)):
        with pytest.raises(CommitmentError, match="bool"):
            tensor_root(values)


@pytest.mark.parametrize("dtype", [torch.float8_e5m2, torch.complex64])
def test_a_dtype_without_a_little_endian_layout_has_no_root(dtype: torch.dtype) -> None:
    with pytest.raises(CommitmentError, match=r"dtype .* has no root"):
        tensor_root(torch.ones(3, dtype=dtype))


def test_objects_have_no_root() -> None:
    with pytest.raises(CommitmentError, match="dtype object"):
        tensor_root(np.array([object()]))


def test_every_chunk_of_a_tensor_opens_against_its_root() -> None:
    tensor = torch.arange(700, dtype=torch.float32)
    tree = tensor_tree(tensor)
    assert tree.count == 3
    for i in range(3):
        chunk = bytes(tensor_bytes(tensor)[1024 * i :][:1024])
        assert verify(tree.root, chunk, i, tree.count, tree.proof(i))


def test_the_empty_tensor_has_one_empty_chunk() -> None:
    tree = tensor_tree(torch.ones(0))
    assert tree.count == 1 and verify(tree.root, b"", 0, 1, tree.proof(0))


def test_a_state_root_is_the_tree_over_tensor_roots_in_order() -> None:
    a, b = torch.ones(3), torch.zeros(2, dtype=torch.int64)
    assert state_root([a, b]) == MerkleTree([tensor_root(a), tensor_root(b)]).root
    assert state_root([a, b]) != state_root([b, a])
