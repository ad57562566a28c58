// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Merkle, Node} from "../Merkle.sol";
import {DType, Descriptors} from "./Descriptor.sol";

/// @notice A chunk of an operand's tensor, with its proof into that tensor's root.
struct ChunkOpening {
    /// Number of the operand that it belongs to: the first that is this value.
    uint8 input;
    /// Number of the chunk in the operand's bytes.
    uint64 chunk;
    bytes data;
    /// From the leaf upwards, as many as the tree is deep.
    bytes32[] proof;
}

/// @notice A tensor with opened chunks.
struct Tensor {
    bytes32 root;
    DType dtype;
    uint256 elements;
    /// Number under which its chunks are opened.
    uint256 input;
}

/// @notice The bytes of a tensor with opened chunks, of elements of any width.
struct Bytes {
    bytes32 root;
    uint256 size;
    /// Number under which its chunks are opened.
    uint256 input;
}

/// @notice The chunk that was last read of a tensor: neighbouring terms read neighbouring elements.
struct Window {
    /// Elements `start` to `end` - 1 stand in it.
    uint256 start;
    uint256 end;
    /// Place in the call data.
    uint256 place;
    /// Bytes of an element.
    uint256 width;
    uint256 input;
    /// Bits that are an element's of the eight bytes that are read for it.
    uint256 mask;
}

/// @notice Index of the openings: a sorted key for each, and a window for each tensor.
struct Index {
    uint256[] keys;
    Window[] windows;
    uint256 chunkSize;
}

/// @title Reading elements from opened chunks of tensors
/// @notice Openings are checked once, all of them, and then read like an array. They have to stand in ascending order of (input, chunk),
///         each once.
library Openings {
    /// @notice Openings have to be in strictly ascending order of (input, chunk).
    error OpeningsNotSorted(uint256 position);
    error NoSuchInput(uint8 input);
    /// @notice All chunks but a tensor's last one are full.
    error WrongChunkLength(uint256 length, uint256 expected);
    /// @notice An element of this chunk is needed, but it was not opened.
    error ChunkNotOpened(uint256 input, uint256 chunk);
    /// @notice Elements have to lie inside of one chunk.
    error ChunkSizeSplitsElements(uint32 chunkSize);

    /// @dev BF16 as FP32: the upper half of its pattern, whose lower half stands in the two bytes before it.
    uint256 private constant UPPER_HALF = 0xFFFF0000;

    /// @notice Checks every opening against the root of its tensor.
    /// @param widens whether elements of BF16 are read as the FP32 numbers that they are
    function check(ChunkOpening[] calldata openings, Tensor[] memory tensors, uint32 chunkSize, bool widens)
        internal
        pure
        returns (Index memory index)
    {
        requireChunkSize(chunkSize);
        index.chunkSize = chunkSize;
        index.windows = new Window[](tensors.length);
        for (uint256 i = 0; i < tensors.length; ++i) {
            uint256 width = Descriptors.width(tensors[i].dtype);
            uint256 mask = widens && tensors[i].dtype == DType.BF16 ? UPPER_HALF : (1 << (8 * width)) - 1;
            index.windows[i] = Window(0, 0, 0, width, tensors[i].input, mask);
        }
        index.keys = new uint256[](openings.length);
        for (uint256 i = 0; i < openings.length; ++i) {
            ChunkOpening calldata opening = openings[i];
            uint256 key = keyOf(opening.input, opening.chunk);
            if (i > 0 && key <= index.keys[i - 1]) revert OpeningsNotSorted(i);
            index.keys[i] = key;
            if (opening.input >= tensors.length) revert NoSuchInput(opening.input);
            Tensor memory tensor = tensors[opening.input];
            checkOne(opening, tensor.root, tensor.elements * Descriptors.width(tensor.dtype), chunkSize);
        }
    }

    /// @notice Leaves of the tree over so many bytes: at least one, so that every tensor has a root.
    function chunkCount(uint256 size, uint256 chunkSize) internal pure returns (uint64) {
        // forge-lint: disable-next-line(unsafe-typecast)
        return size == 0 ? 1 : uint64((size - 1) / chunkSize + 1);
    }

    /// @notice The bits of an element of a tensor.
    function element(Index memory self, ChunkOpening[] calldata openings, uint256 tensor, uint256 position)
        internal
        pure
        returns (uint64 bits)
    {
        Window memory window = self.windows[tensor];
        if (position < window.start || position >= window.end) moveTo(self, window, openings, position);
        unchecked {
            uint256 place = window.place + (position - window.start) * window.width;
            uint256 word;
            // INVARIANT: the window is a chunk of exactly its length, so the element lies inside.
            // slither-disable-next-line assembly
            assembly ("memory-safe") {
                word := calldataload(place)
            }
            bits = uint64(reverse(word >> 192) & window.mask);
        }
    }

    /// @dev Looks for the chunk of an element.
    function moveTo(Index memory self, Window memory window, ChunkOpening[] calldata openings, uint256 position) private pure {
        uint256 perChunk = self.chunkSize / window.width;
        bytes calldata data = openings[find(self.keys, window.input, position / perChunk)].data;
        uint256 place;
        // slither-disable-next-line assembly
        assembly ("memory-safe") {
            place := data.offset
        }
        window.start = position - position % perChunk;
        window.end = window.start + data.length / window.width;
        // INVARIANT: two bytes before a chunk are call data, at least a part of its length.
        window.place = window.mask == UPPER_HALF ? place - 2 : place;
    }

    /// @notice The bits of the element of `size` bytes at a byte of a chunk, which is little-endian. Reverts beyond its end.
    function decode(bytes calldata data, uint256 start, uint256 size) internal pure returns (uint64 bits) {
        // Fewer than eight bytes stand before zeros, and behind them when they are turned round.
        return uint64(reverse(uint64(bytes8(data[start:start + size]))));
    }

    /// @notice One element of a tensor, from the one chunk that holds it.
    function elementIn(ChunkOpening calldata opening, Tensor memory tensor, uint256 position, uint32 chunkSize)
        internal
        pure
        returns (uint64)
    {
        uint256 width = Descriptors.width(tensor.dtype);
        Bytes memory whole = Bytes(tensor.root, tensor.elements * width, tensor.input);
        return numberIn(opening, whole, position * width, width, chunkSize);
    }

    /// @notice The number of `width` bytes (1, 2, 4 or 8) at a byte of a tensor, which is a multiple of its width, from the one chunk that
    ///         holds it.
    function numberIn(ChunkOpening calldata opening, Bytes memory whole, uint256 start, uint256 width, uint32 chunkSize)
        internal
        pure
        returns (uint64)
    {
        requireChunkSize(chunkSize);
        uint256 chunk = start / chunkSize;
        if (opening.input != whole.input || opening.chunk != chunk) revert ChunkNotOpened(whole.input, chunk);
        checkOne(opening, whole.root, whole.size, chunkSize);
        return decode(opening.data, start % chunkSize, width);
    }

    /// @notice Reverts unless the opening is leaf `leaf` of `count`, of `length` bytes, under a root.
    function requireLeaf(ChunkOpening calldata opening, uint256 input, uint256 leaf, uint256 length, bytes32 root, uint64 count)
        internal
        pure
    {
        if (opening.input != input || opening.chunk != leaf) revert ChunkNotOpened(input, leaf);
        prove(opening, length, root, count);
    }

    function requireChunkSize(uint32 chunkSize) internal pure {
        if (chunkSize == 0 || chunkSize % 8 != 0) revert ChunkSizeSplitsElements(chunkSize);
    }

    /// @dev Eight bytes the other way round.
    function reverse(uint256 x) private pure returns (uint256) {
        unchecked {
            x = ((x & 0x00FF00FF00FF00FF) << 8) | ((x >> 8) & 0x00FF00FF00FF00FF);
            x = ((x & 0x0000FFFF0000FFFF) << 16) | ((x >> 16) & 0x0000FFFF0000FFFF);
            return ((x & type(uint32).max) << 32) | (x >> 32);
        }
    }

    function checkOne(ChunkOpening calldata opening, bytes32 root, uint256 size, uint256 chunkSize) private pure {
        uint64 count = chunkCount(size, chunkSize);
        // The tree's own check of the index, before it is multiplied.
        if (opening.chunk >= count) revert Merkle.LeafIndexOutOfRange(opening.chunk, count);
        uint256 left = size - opening.chunk * chunkSize;
        prove(opening, left < chunkSize ? left : chunkSize, root, count);
    }

    function prove(ChunkOpening calldata opening, uint256 length, bytes32 root, uint64 count) private pure {
        if (opening.data.length != length) revert WrongChunkLength(opening.data.length, length);
        Merkle.requireLeafOfBytes(Node.wrap(root), opening.data, opening.chunk, count, opening.proof);
    }

    function keyOf(uint256 input, uint256 chunk) private pure returns (uint256) {
        return (input << 64) | chunk;
    }

    function find(uint256[] memory keys, uint256 input, uint256 chunk) private pure returns (uint256) {
        uint256 key = keyOf(input, chunk);
        unchecked {
            (uint256 low, uint256 high) = (0, keys.length);
            while (low < high) {
                uint256 middle = (low + high) / 2;
                if (keys[middle] < key) low = middle + 1;
                else high = middle;
            }
            if (low == keys.length || keys[low] != key) revert ChunkNotOpened(input, chunk);
            return low;
        }
    }
}
