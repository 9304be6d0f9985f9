// A weight [N outputs, K inputs] of which every 8 inputs of an output are a pseudo-random 8 x 3
// matrix times three small coefficients (SeedLM, Shafipour et al. 2024, arXiv 2410.10714):
//
//   w[8 b + i] = scale * sum_p t_p u_p[i]        u_p[i] = nibble - 8, made from the block's seed
//
// The paper has an LFSR for the nibbles and an exponent for every block; here they come from a
// multiplicative hash, which takes three multiplications, and 4 blocks share an fp16 scale.
//
// A block is a word of 8 * bits bits. Coefficients have `bits` bits, c_p = t_p + 2^(bits - 1), and
// lie at 0 (c_0), 8 (c_1) and 12 (c_2) of it; a nibble of the scale lies at 4; all other bits are
// the seed. So 3 bits a weight have seeds of 11 bits, 4 bits have 16.
//
// Tiles and groups are those of kernels/products/packing.h. A group of a tile holds 4 blocks of 16
// outputs, one block after the other:
//
//   3 bits, 192 bytes: the low halves of 16 words, u16, then their high bytes, u8
//   4 bits, 256 bytes: 16 words, u32
//
// Functions have internal linkage, so that no target's instructions leak into another.
#pragma once

#include <stdint.h>
#include <string.h>

#include "kernels/products/matmul.h"

namespace tamiz {

constexpr int64_t kSeedBlock = 8;                     // inputs that share a seed
constexpr int64_t kSeedBlocks = kGroup / kSeedBlock;  // of a group
constexpr int kSeedRank = 3;                          // coefficients of a block
constexpr uint32_t kSeedFactor = 0x9e3779b1, kSeedTerm = 0x85ebca6b;
constexpr int64_t kSeedClasses = 16;  // seeds of a search are told apart by their number mod 16

constexpr int64_t seedlm_group_bytes(int bits) { return kTile * kGroup * bits / 8; }
constexpr int seedlm_seed_bits(int bits) { return 5 * bits - 4; }
/// 2^(bits - 1): what is added to a coefficient.
constexpr int seedlm_offset(int bits) { return 1 << (bits - 1); }
/// The bits of a word that are its seed.
constexpr uint32_t seedlm_seed_mask(int bits) { return bits == 3 ? 0x00ff8808u : 0xffff0000u; }

/// The word of output `o` in block `b` of a group.
static inline uint32_t seedlm_word(const uint8_t* group, int bits, int64_t b, int64_t o) {
  uint32_t word = 0;
  const uint8_t* const block = group + b * kTile * bits;
  if (bits == 4) {
    memcpy(&word, block + 4 * o, 4);
  } else {
    memcpy(&word, block + 2 * o, 2);
    word |= static_cast<uint32_t>(block[2 * kTile + o]) << 16;
  }
  return word;
}

/// u[p][i] of a seed: three words of 8 nibbles. The first two hold columns 0 and 1 side by side,
/// inputs in the order 0, 2, 1, 3 as `QuantRows` has them; the third holds column 2.
static inline void seedlm_columns(uint32_t seed, int8_t (&u)[kSeedRank][kSeedBlock]) {
  uint32_t hash[3];
  uint32_t state = seed ^ seed >> 16;
  for (uint32_t& h : hash) {
    state = state * kSeedFactor + kSeedTerm;
    state ^= state >> 15;
    h = state;
  }
  for (int i = 0; i < kSeedBlock; ++i) {
    const int second = i >> 1 & 1;
    const int pair = i >> 2 << 1 | (i & 1);
    for (int p = 0; p < 2; ++p) {
      const int shift = 8 * (2 * second + p) + 4 * (pair & 1);
      u[p][i] = static_cast<int8_t>((hash[pair >> 1] >> shift & 15) - 8);
    }
    u[2][i] = static_cast<int8_t>((hash[2] >> (16 * second + 4 * pair) & 15) - 8);
  }
}

/// sum_p t_p u_p[i], -192 to 192.
static inline void seedlm_quants(uint32_t word, int bits, int16_t (&quants)[kSeedBlock]) {
  int8_t u[kSeedRank][kSeedBlock];
  seedlm_columns(word & seedlm_seed_mask(bits), u);
  constexpr int kShifts[kSeedRank] = {0, 8, 12};
  memset(quants, 0, sizeof(quants));
  for (int p = 0; p < kSeedRank; ++p) {
    const int c = static_cast<int>(word >> kShifts[p]) & ((1 << bits) - 1);
    for (int i = 0; i < kSeedBlock; ++i) {
      quants[i] = static_cast<int16_t>(quants[i] + (c - seedlm_offset(bits)) * u[p][i]);
    }
  }
}

/// The scale of output `o`: a nibble of each block's word, the lowest first.
static inline float seedlm_scale(const uint8_t* group, int bits, int64_t o) {
  uint16_t half = 0;
  for (int b = 0; b < kSeedBlocks; ++b) {
    half = static_cast<uint16_t>(half | (seedlm_word(group, bits, b, o) >> 4 & 15) << 4 * b);
  }
  uint8_t bytes[2];
  memcpy(bytes, &half, sizeof(half));
  return half_to_float(bytes);
}

/// For each row and each class the seed whose basis Q [8, 3] has the largest ||Q^T v||^2.
struct SeedSearch {
  const int16_t* bases;    // of every 16 seeds [3 columns][4 pairs of inputs][16 seeds][2 inputs]
  int64_t first, seeds;    // number of the first seed; how many, a multiple of 16
  const int16_t* targets;  // v [rows, 8]; |v| < 2^13 and |Q| <= 2^14, so that sums fit 32 bits
  int64_t rows;
  float* energies;  // [rows, 16], the largest so far
  float* numbers;   // [rows, 16], number of that seed without its class
};

struct SeedlmKernels {
  /// As `MatMulKernels::multiply`, of weights that lie as above; `bits` is 3 or 4.
  void (*multiply)(const MultiplyArgs&);

  /// Of equal ones the first. The same bits on every instruction set.
  void (*search)(const SeedSearch&);
};

}  // namespace tamiz
