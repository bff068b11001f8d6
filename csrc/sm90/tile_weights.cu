// SPDX-License-Identifier: Apache-2.0
// Canonical weights to the tiles of comet/sm90/weight_tile.cuh. Runs once a layer, at load time.
#include "comet/sm90/weight_tile.cuh"
#include "comet/w4ax_sm90.h"

namespace comet::sm90 {
namespace {

constexpr int kWordsPerTile = kTileCodeBytes / 4;
constexpr int kThreads = 256;

// Natural order, which only a build variant reads: the canonical bytes of a tile's channels.
__device__ __forceinline__ void copy_codes(const CometTileWeightsArgs& a, uint8_t* tile,
                                           int tile_row, int block) {
  const size_t row_bytes = static_cast<size_t>(a.blocks) * kChannelBytes;
  for (int i = threadIdx.x; i < kTileCodeBytes; i += kThreads) {
    const int channel = tile_row * kTileChannels + i / kChannelBytes;
    const size_t from = channel * row_bytes + block * kChannelBytes + i % kChannelBytes;
    tile[i] = channel < a.channels ? a.codes[from] : 0;
  }
}

// One thread block a tile; padding channels get codes and scales of zero.
__global__ void tile_weights_kernel(CometTileWeightsArgs a) {
  const int tile_row = blockIdx.x / a.blocks, block = blockIdx.x % a.blocks;
  uint8_t* tile = static_cast<uint8_t*>(a.tiles) + static_cast<size_t>(blockIdx.x) * kTileBytes;
  const size_t row_bytes = static_cast<size_t>(a.blocks) * (kTileK / 2);
  if constexpr (!kInterleaved) copy_codes(a, tile, tile_row, block);
  for (int word = threadIdx.x; kInterleaved && word < kWordsPerTile; word += kThreads) {
    const int row_half = word % 2, step = word / 2 % 2, lane = word / 4 % 32;
    const int half = word / 128 % 2, warp = word / 256;
    const int channel = tile_row * kTileChannels + warp * 16 + lane / 4 * 2 + row_half;
    const int k = half * 64 + step * 32 + lane % 4 * 4;
    uint32_t packed = 0;
    if (channel < a.channels) {
      const uint8_t* low = a.codes + channel * row_bytes + (block * kTileK + k) / 2;
      for (int i = 0; i < 4; ++i) {
        const uint32_t first = low[i / 2] >> (i % 2 * 4) & 15;
        const uint32_t second = low[8 + i / 2] >> (i % 2 * 4) & 15;  // 16 channels further
        packed |= (first | second << 4) << (i * 8);
      }
    }
    reinterpret_cast<uint32_t*>(tile)[word] = packed;
  }
  if (threadIdx.x < kTileChannels) {
    const int channel = tile_row * kTileChannels + threadIdx.x;
    uint32_t scale = 0, zero = 0;
    if (channel < a.channels) {
      scale = a.group_scale[static_cast<size_t>(channel) * a.blocks + block];
      zero = a.group_zero[static_cast<size_t>(channel) * a.blocks + block];
    }
    tile[kTileCodeBytes + threadIdx.x * 2] = static_cast<uint8_t>(scale);
    tile[kTileCodeBytes + threadIdx.x * 2 + 1] = static_cast<uint8_t>(255 - scale * zero);
  }
}

}  // namespace
}  // namespace comet::sm90

COMET_API int comet_tile_weights_sm90(const CometTileWeightsArgs* args, cudaStream_t stream) {
  if (args == nullptr || args->size != sizeof(CometTileWeightsArgs)) return kCometBadStructSize;
  if (args->channels < 1 || args->blocks < 1) return kCometBadShape;
  if (args->codes == nullptr || args->group_scale == nullptr || args->group_zero == nullptr ||
      args->tiles == nullptr) {
    return kCometBadPointer;
  }
  const int rows = (args->channels + comet::sm90::kTileChannels - 1) / comet::sm90::kTileChannels;
  comet::sm90::tile_weights_kernel<<<rows * args->blocks, comet::sm90::kThreads, 0, stream>>>(
      *args);
  return comet::launch_status();
}
