// y[o] = bias[o] + sum_g xs[g] ws[o,g] sum_b sum_i xq[g,b,i] sum_p t_p[o,g,b] u_p[o,g,b,i]
//
// Weights are made in registers: the nibbles n of a block from three multiplications, then
//
//   sum_p t_p u_p = n_0 t_0 + n_1 t_1 + n_2 t_2 + 8 (-t_0 - t_1 - t_2)
//
// as two products of unsigned and signed bytes; the rest is the product of
// kernels/products/matmul-inl.h.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/deltas/seedlm.h"
#include "kernels/products/matmul-inl.h"
#include "simd/target.h"

namespace tamiz {
namespace TAMIZ_TARGET {

#if defined(TAMIZ_VECTORS)

// ---- weights ----

/// A group as `multiply_block` and its kin read a weight (kernels/products/matmul-inl.h): a vector
/// is the words of a block, its pairs of inputs are made from them.
template <int Bits>
struct Seeded : PlainGroups<seedlm_group_bytes(Bits)> {
  static constexpr bool kFromMemory = true;
  static constexpr int kVectors = kSeedBlocks;
  static constexpr bool kMinima = false;
  static constexpr bool kUnits = false;

  static Ints vector(const uint8_t* group, int strip, int v) {
    const uint8_t* const block = group + kTile * Bits * v;
    if (Bits == 4) return load_ints(block + 4 * kLanes * strip);
    return bits_or(wide_words(block + 2 * kLanes * strip),
                   ints_left<16>(wide_bytes(block + 2 * kTile + kLanes * strip)));
  }
  template <int Pair>
  static Ints words(Ints x) {
    // The compiler makes what does not depend on Pair once.
    const Ints seed = bits_and(x, all_ints(static_cast<int>(seedlm_seed_mask(Bits))));
    Ints hash[3];
    Ints state = bits_xor(seed, ints_right<16>(seed));
    for (Ints& h : hash) {
      state = ints_plus(ints_times(state, all_ints(static_cast<int>(kSeedFactor))),
                        all_ints(static_cast<int>(kSeedTerm)));
      state = bits_xor(state, ints_right<15>(state));
      h = state;
    }
    constexpr int kMask = (1 << Bits) - 1;
    const Ints fields = low_words_twice(x);
    const Ints t01 = bytes_minus(bits_and(fields, all_words(kMask << 8 | kMask)),
                                 all_words(seedlm_offset(Bits) * 0x101));
    const Ints t2 = words_minus(bits_and(words_right<12>(fields), all_words(kMask)),
                                all_words(seedlm_offset(Bits)));
    const Ints sum = words_plus(dot_bytes(all_words(0x0101), t01), t2);
    const Ints t2_minus_sum = words_minus(bits_and(t2, all_words(0xff)), words_left<8>(sum));
    const Ints n01 =
        bits_and(Pair % 2 == 0 ? hash[Pair / 2] : words_right<4>(hash[Pair / 2]), all_words(0xf0f));
    const Ints n2_and_8 =
        bits_or(bits_and(words_right<4 * Pair>(hash[2]), all_words(15)), all_words(0x800));
    return words_plus(dot_bytes(n01, t01), dot_bytes(n2_and_8, t2_minus_sum));
  }
  static Vec scales(const uint8_t* group, int strip) {
    const Ints nibble = all_ints(0xf0);
    Ints half = bits_and(ints_right<4>(vector(group, strip, 0)), all_ints(0xf));
    half = bits_or(half, bits_and(vector(group, strip, 1), nibble));
    half = bits_or(half, ints_left<4>(bits_and(vector(group, strip, 2), nibble)));
    return halves_to_float(bits_or(half, ints_left<8>(bits_and(vector(group, strip, 3), nibble))));
  }
  static Vec minima(const uint8_t*, int) { return broadcast(0.0f); }
};

inline void multiply_seeded(const MultiplyArgs& a) {
  if (a.bits == 3) {
    multiply_packed<Seeded<3>>(a);
  } else {
    multiply_packed<Seeded<4>>(a);
  }
}

// ---- search ----

/// R rows and a vector of classes from `lane` on.
template <int R>
inline void search_rows(const SeedSearch& a, int64_t row, int64_t lane) {
  constexpr int kPairs = kSeedBlock / 2;
  Vec energies[R], numbers[R];
  for (int r = 0; r < R; ++r) {
    energies[r] = load(a.energies + (row + r) * kSeedClasses + lane);
    numbers[r] = load(a.numbers + (row + r) * kSeedClasses + lane);
  }
  const int16_t* base = a.bases + 2 * lane;
  for (int64_t s = 0; s < a.seeds; s += kSeedClasses) {
    const Vec number = broadcast(static_cast<float>(a.first + s));
    Vec sum[R][kSeedRank];
    for (int p = 0; p < kSeedRank; ++p) {
      Ints dot[R];
      for (int r = 0; r < R; ++r) dot[r] = all_ints(0);
      for (int v = 0; v < kPairs; ++v, base += 2 * kSeedClasses) {
        const Ints q = load_ints(base);
        for (int r = 0; r < R; ++r) {
          dot[r] = dot_pairs(dot[r], q, pair(a.targets + (row + r) * kSeedBlock + 2 * v));
        }
      }
      for (int r = 0; r < R; ++r) sum[r][p] = to_float(dot[r]);
    }
    for (int r = 0; r < R; ++r) {
      const Vec energy =
          fma(sum[r][2], sum[r][2], fma(sum[r][1], sum[r][1], sum[r][0] * sum[r][0]));
      numbers[r] = select_le(energy, energies[r], numbers[r], number);
      energies[r] = max(energies[r], energy);
    }
  }
  for (int r = 0; r < R; ++r) {
    store(a.energies + (row + r) * kSeedClasses + lane, energies[r]);
    store(a.numbers + (row + r) * kSeedClasses + lane, numbers[r]);
  }
}

inline void search_seeds(const SeedSearch& a) {
  constexpr int R = 4;
  for (int64_t lane = 0; lane < kSeedClasses; lane += kLanes) {
    int64_t row = 0;
    for (; row + R <= a.rows; row += R) search_rows<R>(a, row, lane);
    for (; row < a.rows; ++row) search_rows<1>(a, row, lane);
  }
}

#else

inline void multiply_seeded(const MultiplyArgs& a) {
  const int64_t group_bytes = seedlm_group_bytes(a.bits);
  for (int64_t output = 0; output < a.outputs; ++output) {
    const int64_t o = output % kTile;
    const uint8_t* group = a.weight + output / kTile * a.x.groups * group_bytes;
    for (int64_t r = 0; r < a.rows; ++r) {
      a.y[r * a.y_stride + output] = a.bias ? a.bias[output] : 0.0f;
    }
    for (int64_t g = 0; g < a.x.groups; ++g, group += group_bytes) {
      int16_t quants[kSeedBlocks][kSeedBlock];
      for (int b = 0; b < kSeedBlocks; ++b) {
        seedlm_quants(seedlm_word(group, a.bits, b, o), a.bits, quants[b]);
      }
      for (int64_t r = 0; r < a.rows; ++r) {
        const int64_t at = a.x.at(a.first_row + r, g);
        if (a.skip && a.x.kept[at] == 0) continue;
        const int32_t sum =
            dot_group(a.x, at, [&](int64_t i) { return quants[i / kSeedBlock][i % kSeedBlock]; });
        float& y = a.y[r * a.y_stride + output];
        y = fmaf(static_cast<float>(sum) * a.x.scales[at], seedlm_scale(group, a.bits, o), y);
      }
    }
  }
}

inline void search_seeds(const SeedSearch& a) {
  for (int64_t row = 0; row < a.rows; ++row) {
    for (int64_t seed = 0; seed < a.seeds; ++seed) {
      const int64_t lane = seed % kSeedClasses;
      const int16_t* base = a.bases + (seed - lane) * kSeedRank * kSeedBlock + 2 * lane;
      float energy = 0.0f;
      for (int p = 0; p < kSeedRank; ++p) {
        int32_t dot = 0;
        for (int i = 0; i < kSeedBlock; ++i) {
          const int64_t at = (p * kSeedBlock / 2 + i / 2) * 2 * kSeedClasses + i % 2;
          dot += base[at] * a.targets[row * kSeedBlock + i];
        }
        energy = fmaf(static_cast<float>(dot), static_cast<float>(dot), energy);
      }
      float& best = a.energies[row * kSeedClasses + lane];
      if (energy <= best) continue;
      best = energy;
      a.numbers[row * kSeedClasses + lane] = static_cast<float>(a.first + seed - lane);
    }
  }
}

#endif

constexpr SeedlmKernels seedlm_kernels = {multiply_seeded, search_seeds};

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
