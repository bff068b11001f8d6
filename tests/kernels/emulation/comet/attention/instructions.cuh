// SPDX-License-Identifier: Apache-2.0
// Stands in for the header of the same name in csrc/include: the same functions on the host, with
// the meaning that the PTX manual gives their instructions.
#pragma once

#include "machine.h"

namespace comet::kv4 {

struct Fp16 {};
struct Bf16 {};

inline uint8_t* dynamic_shared() {
  return reinterpret_cast<uint8_t*>(machine::block->shared.data());
}

inline uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
inline float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

template <class T>
float one_to_float(uint16_t bits) {
  if constexpr (std::is_same_v<T, Bf16>) return float_of(static_cast<uint32_t>(bits) << 16);
  _Float16 half;
  std::memcpy(&half, &bits, 2);
  return half;
}

template <class T>
uint16_t one_from_float(float x) {
  if constexpr (std::is_same_v<T, Bf16>) {
    const uint32_t bits = bits_of(x);
    if (x != x) return 0x7fff;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  }
  const _Float16 half = static_cast<_Float16>(x);
  uint16_t bits;
  std::memcpy(&bits, &half, 2);
  return bits;
}

template <class T>
float2 to_floats(uint32_t pair) {
  return make_float2(one_to_float<T>(pair & 0xffff), one_to_float<T>(pair >> 16));
}
template <class T>
uint32_t to_pair(float low, float high) {
  return one_from_float<T>(low) | static_cast<uint32_t>(one_from_float<T>(high)) << 16;
}
inline uint32_t multiply_halves(uint32_t a, uint32_t b) {
  const float2 x = to_floats<Fp16>(a), y = to_floats<Fp16>(b);
  return to_pair<Fp16>(x.x * y.x, x.y * y.y);
}
inline uint32_t rest_of_product(uint32_t a, uint32_t b, uint32_t product) {
  const float2 x = to_floats<Fp16>(a), y = to_floats<Fp16>(b), p = to_floats<Fp16>(product);
  return to_pair<Fp16>(std::fma(x.x, y.x, -p.x), std::fma(x.y, y.y, -p.y));
}
inline uint32_t odd_bytes(uint32_t word) { return word >> 8 & 0x00ff00ffu; }
inline float divide(float a, float b) { return a / b; }
inline float exp2_approximate(float x) { return std::exp2(x); }

template <class Pick>
uint32_t picked(uint32_t x, Pick pick) {
  return *machine::collective({x}, [&](machine::Warp& w) {
    for (int lane = 0; lane < 32; ++lane) w.out[lane][0] = w.in[pick(lane) % 32][0];
  });
}
// Within one call all lanes name the same distance or the same source.
inline float shuffle_xor(float x, int lanes) {
  return float_of(picked(bits_of(x), [lanes](int lane) { return lane ^ lanes; }));
}
inline int shuffle_up(int x, int lanes) {
  return picked(x, [lanes](int lane) { return lane < lanes ? lane : lane - lanes; });
}
inline int shuffle(int x, int source) {
  const uint32_t wanted = source;
  return *machine::collective({static_cast<uint32_t>(x), wanted}, [](machine::Warp& w) {
    for (auto lane = 0; lane < 32; ++lane) w.out[lane][0] = w.in[w.in[lane][1] % 32][0];
  });
}
inline float shuffle(float x, int source) {
  return float_of(shuffle(static_cast<int>(bits_of(x)), source));
}
inline uint32_t ballot(bool value) {
  return *machine::collective({value}, [](machine::Warp& w) {
    uint32_t bits = 0;
    for (int lane = 0; lane < 32; ++lane) bits |= w.in[lane][0] << lane;
    for (int lane = 0; lane < 32; ++lane) w.out[lane][0] = bits;
  });
}
inline bool any_lane(bool value) { return ballot(value) != 0; }
inline int lane_sum(int x) {
  return *machine::collective({static_cast<uint32_t>(x)}, [](machine::Warp& w) {
    uint32_t sum = 0;
    for (int lane = 0; lane < 32; ++lane) sum += w.in[lane][0];
    for (int lane = 0; lane < 32; ++lane) w.out[lane][0] = sum;
  });
}
inline int first_set(uint32_t bits) { return __builtin_ffs(bits) - 1; }

// mma.m16n8k16, PTX manual: lane 4 g + t holds a0 (row g, columns 2 t, 2 t + 1), a1 (row g + 8), a2
// (row g, columns 2 t + 8, ..), a3; b0 (rows 2 t, 2 t + 1, column g), b1 (rows 2 t + 8, ..);
// d0, d1 (row g, columns 2 t, 2 t + 1), d2, d3 (row g + 8).
template <class T>
void mma(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
         uint32_t b1) {
  const uint32_t* out = machine::collective(
      {a0, a1, a2, a3, b0, b1, bits_of(d[0]), bits_of(d[1]), bits_of(d[2]), bits_of(d[3])},
      [](machine::Warp& w) {
        double a[16][16], b[16][8];
        for (int lane = 0; lane < 32; ++lane) {
          const int g = lane / 4, t = lane % 4;
          for (int r = 0; r < 4; ++r) {
            const float2 pair = to_floats<T>(w.in[lane][r]);
            a[g + r % 2 * 8][2 * t + r / 2 * 8] = pair.x;
            a[g + r % 2 * 8][2 * t + r / 2 * 8 + 1] = pair.y;
          }
          for (int r = 0; r < 2; ++r) {
            const float2 pair = to_floats<T>(w.in[lane][4 + r]);
            b[2 * t + r * 8][g] = pair.x;
            b[2 * t + r * 8 + 1][g] = pair.y;
          }
        }
        for (int lane = 0; lane < 32; ++lane) {
          for (int i = 0; i < 4; ++i) {
            const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
            double sum = float_of(w.in[lane][6 + i]);
            for (int k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
            w.out[lane][i] = bits_of(static_cast<float>(sum));
          }
        }
      });
  for (int i = 0; i < 4; ++i) d[i] = float_of(out[i]);
}

// movmatrix.m8n8.trans: lane 4 g + t holds row g, columns 2 t and 2 t + 1, before and after.
inline uint32_t transpose(uint32_t pair) {
  return *machine::collective({pair}, [](machine::Warp& w) {
    for (int lane = 0; lane < 32; ++lane) {
      uint32_t halves = 0;
      for (int i = 0; i < 2; ++i) {
        const int row = lane % 4 * 2 + i, column = lane / 4;
        const uint32_t held = w.in[row * 4 + column / 2][0];
        halves |= (column % 2 ? held >> 16 : held & 0xffff) << 16 * i;
      }
      w.out[lane][0] = halves;
    }
  });
}

inline uint4 load_global(const void* address) { return *static_cast<const uint4*>(address); }
inline float4 load_shared_result(const float4* address) { return *address; }
inline float2 load_shared_result(const float2* address) { return *address; }
inline void fence_copies() {}
inline void launch_dependents() {}
inline void wait_dependencies() {}

// A copy arrives as late as it may: when somebody waits for it. Until then its place holds NaN, so
// that whoever still reads what was there before, or reads too early, is found out.
inline void init_barrier(uint64_t* barrier) { *barrier = 0; }
inline void copy_async(uint8_t* to, const uint8_t* from, int bytes, uint64_t* barrier, int lane) {
  if (lane != 0) return;
  if (machine::block->copies.count(barrier)) std::abort();
  std::memset(to, 0xff, bytes);
  machine::block->copies[barrier] = {to, from, bytes};
}
inline void wait_copies(uint64_t* barrier, uint32_t parity) {
  auto& copies = machine::block->copies;
  if (const auto found = copies.find(barrier); found != copies.end()) {
    std::memcpy(found->second.to, found->second.from, found->second.bytes);
    copies.erase(found);
    ++*barrier;
  }
  if (*barrier % 2 != (parity ^ 1)) std::abort();
}

}  // namespace comet::kv4
