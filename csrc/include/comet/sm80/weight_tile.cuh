// SPDX-License-Identifier: Apache-2.0
// What the kernel reads for 128 output channels and one 128-channel block of K.
//
// A tile is 8192 bytes of codes, then for each channel the bytes (s, 8 - z). Codes are u - 8 in
// two's complement, which the tensor core multiplies as they are: s * (u - z) = s * ((u - 8) + (8 -
// z)).
//
// Interleaved: 16 groups of 8 channels, in each 16 bytes a lane, so that one 16-byte load feeds a
// lane with all it multiplies in the block. Lane 4 * g + q holds codes of channel g:
//   INT4 block: word 2 * step + half has K 64 * step + 32 * half + 8 * q + j in nibble j;
//   INT8 block: word `step` has K 32 * step + 4 * q + j in the low nibble of byte j and
//               K 32 * step + 16 + 4 * q + j in its high nibble (comet/sm80/convert.cuh).
// Natural: 64 bytes a channel, K in order, even K low. comet/kernels/layout_sm80.py makes both.
#pragma once

#include "comet/layout.cuh"

namespace comet::sm80 {

constexpr int kTileChannels = 128;
constexpr int kGroupChannels = 8;  // channels of one tensor-core operand
constexpr int kGroupBytes = kGroupChannels * kBlock / 2;
constexpr int kCodeBytes = kTileChannels * kBlock / 2;
constexpr int kTileBytes = kCodeBytes + 2 * kTileChannels;

}  // namespace comet::sm80
