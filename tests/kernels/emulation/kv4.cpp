// SPDX-License-Identifier: Apache-2.0
// The KV4 kernels on the emulated machine, behind the C interface of the library.
#include "comet/attention/arguments.cuh"
#include "comet/attention/decode.cuh"
#include "machine.h"

using namespace comet::kv4;

namespace {

bool backwards = false;

template <class I>
int emulate_decode(const CometKv4DecodeArgs& a) {
  const DecodeParams p = params_of(a);
  machine::launch(a.blocks, a.warps * 32, shared_bytes<I>(a.warps, a.stages), backwards,
                  [&] { decode_kernel<I>(p); });
  return kCometOk;
}

}  // namespace

// Thread blocks and lanes run in the opposite order from now on, or in order.
COMET_API void emulate_backwards(int on) { backwards = on != 0; }

// Shared memory of a thread block of the decode kernel.
COMET_API int decode_shared_bytes(int head_dim, int warps, int stages) {
  return head_dim == 128 ? shared_bytes<Instance<Fp16, 128, 1>>(warps, stages)
                         : shared_bytes<Instance<Fp16, 64, 1>>(warps, stages);
}

COMET_API int comet_kv4_decode(const CometKv4DecodeArgs* args, cudaStream_t) {
  if (const int status = check(*args)) return status;
  return by_type(*args, [&](auto type, auto dim) {
    using T = decltype(type);
    if (args->heads / args->kv_heads <= 8) return emulate_decode<Instance<T, dim.value, 1>>(*args);
    return emulate_decode<Instance<T, dim.value, 2>>(*args);
  });
}

COMET_API int comet_kv4_append(const CometKv4AppendArgs* args, cudaStream_t) {
  if (const int status = check(*args)) return status;
  return by_type(*args, [&](auto type, auto dim) {
    using A = Appender<decltype(type), dim.value>;
    const AppendParams p = params_of(*args);
    const dim3 grid = append_grid<dim.value>(p, args->max_new_tokens, args->batch);
    for (unsigned sequence = 0; sequence < grid.z; ++sequence) {
      for (unsigned heads = 0; heads < grid.y; ++heads) {
        machine::launch(grid.x, dim.value, A::kSharedBytes, backwards,
                        [&] { A(p).run(blockIdx.x, heads, sequence); });
      }
    }
    return kCometOk;
  });
}

COMET_API int comet_kv4_unpack(const CometKv4UnpackArgs* args, cudaStream_t) {
  if (const int status = check(*args)) return status;
  return by_type(*args, [&](auto type, auto dim) {
    using U = Unpacker<decltype(type), dim.value>;
    const UnpackParams p = params_of(*args);
    for (int sequence = 0; sequence < args->batch; ++sequence) {
      for (int head = 0; head < args->kv_heads; ++head) {
        machine::launch(args->max_pages, dim.value, 0, backwards,
                        [&] { U(p).run(blockIdx.x, head, sequence); });
      }
    }
    return kCometOk;
  });
}
