// SPDX-License-Identifier: Apache-2.0
// Launcher of the paper-faithful kernel with fp32 scales per block.
#include "comet/sm90/block_scaled.cuh"
#include "comet/sm90/launch.cuh"

namespace comet::sm90 {
namespace {

constexpr Schedule kOne = Schedule::kCluster;
using FewTokens = Instance<16, 1, 1, 1, 4, 8, 4, false, kOne>;
using ManyTokens = Instance<64, 2, 1, 1, 4, 32, 1, false, kOne>;

template <class I>
int launch(const CometW4axArgs& a, cudaStream_t stream) {
  GemmParams p = params_of(a);
  p.token_tiles = ceil_div(a.tokens, I::kTokens);
  p.row_tiles = ceil_div(p.channel_tiles, I::kTileRows);
  cudaLaunchConfig_t config = {};
  config.gridDim = p.token_tiles * p.row_tiles;
  config.blockDim = I::kThreads;
  config.dynamicSmemBytes = I::kSharedBytes;
  config.stream = stream;
  cudaLaunchAttribute attributes[1] = {};
  config.attrs = attributes;
  if (a.dependent_launch) add_dependent(config);
  return run_kernel(config, w4ax_block_scaled_kernel<I>, p);
}

}  // namespace
}  // namespace comet::sm90

COMET_API int comet_w4ax_block_scaled_sm90(const CometW4axArgs* args, cudaStream_t stream) {
  using namespace comet::sm90;
  if (args == nullptr || args->size != sizeof(CometW4axArgs)) return kCometBadStructSize;
  const int status = check(*args);
  if (status != kCometOk) return status;
  return args->tokens <= FewTokens::kTokens ? launch<FewTokens>(*args, stream)
                                            : launch<ManyTokens>(*args, stream);
}
