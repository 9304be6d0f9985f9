// Vectors of 32-bit integers and pairs of 16-bit ones, as wide as the vectors of simd/simd.h. The
// scalar level has those that attention needs.
//
//   transpose(x)              lane j of x[i] becomes lane i of x[j]
//   interleave_bytes(x)       of four rows of 4 kLanes bytes, those of kLanes places side by side:
//                             byte r of lane l of x[i] becomes byte i kLanes + l of row r
//   bytes_right<Bits>(x)      shifts every byte, as an unsigned one
//   dot_quads(sum, a, b)      adds unsigned bytes of a times signed bytes of b, in fours
//   dot_quad<Quad>(sum, a, b) .. of b the four of lane Quad, in every lane; only on ARM
//   gather_ints(table, x)     the integers of a table that the lanes of x number
//   negate_bytes(x, flags, bit)  .. those bytes negated whose byte of flags has bit `bit` set
//   any_bits(x)               whether a bit is set; with TAMIZ_DOT on ARM
//   store_low_bytes(p, x)     stores the low byte of every lane
//   pair_words(x, to)         stores 4 kLanes integers as words, of every four in the order
//                             0, 2, 1, 3
//
//   butterfly(x, half)        a stage of the Hadamard transform inside a vector: a + b and a - b
//   for
//                             the lanes i and i + half
//   lanes_above(a, b)         bit i: a > b in lane i
//   every(p, step)            lane i: p[i step]; every_long: pairs of floats
//   count_difference(p, m)    bits that are set in every lane of p, less those of m
//   long_counts(x)            bits that are set in every 64
//   longs_to_float(a, b)      the low integers of the longs of both
//   store_as_words(p, x)      stores the lanes, cut off behind the point, as words, as far as these
//                             reach; the least one for NaN and what is too large for an integer
//   split_words(p, to)        32 words 256 high + low, both signed, whose order is 0, 2, 1, 3 of
//   every
//                             four, as 32 bytes high and 32 low in order; with TAMIZ_DOT
//   split_eights(p, to)       .. as 8 bytes high, 8 low, and so on; with TAMIZ_I8MM
//   nonzero_bytes(p)          bit i: p[i] != 0, of 32; words_at_least(p, least): p[i] >= least
//
// dot_quads and store_low_bytes exist with TAMIZ_DOT, and with TAMIZ_DOT_SIGNED unsigned bytes are
// below 128. Where there is no such instruction, bytes are multiplied as words.
#pragma once

#include <string.h>

#include "simd/simd.h"

namespace tamiz {
namespace TAMIZ_TARGET {

#if defined(TAMIZ_VECTORS)

#if !defined(TAMIZ_HALVES)
template <int Bits>
TAMIZ_ALWAYS_INLINE Ints bytes_right(Ints x) {
  return bits_and(words_right<Bits>(x), all_words((0xff >> Bits) * 0x0101));
}
#endif
inline void pair_words(const Ints (&x)[4], int32_t* to) {
  store_ints(to, pack_words(x[0], x[1]));
  store_ints(to + kLanes, pack_words(x[2], x[3]));
}
inline void transpose(Ints (&x)[kLanes]) {
  Ints pairs[kLanes], quads[kLanes];
  for (int i = 0; i < kLanes; i += 2) {
    pairs[i] = low_ints(x[i], x[i + 1]);
    pairs[i + 1] = high_ints(x[i], x[i + 1]);
  }
  for (int i = 0; i < kLanes; i += 4) {
    quads[i] = low_longs(pairs[i], pairs[i + 2]);
    quads[i + 1] = high_longs(pairs[i], pairs[i + 2]);
    quads[i + 2] = low_longs(pairs[i + 1], pairs[i + 3]);
    quads[i + 3] = high_longs(pairs[i + 1], pairs[i + 3]);
  }
  join_columns(quads, x);
}
inline void interleave_bytes(Ints (&x)[4]) {
  for (Ints& row : x) row = gather_fourths(row);
  const Ints low = low_bytes(x[0], x[1]), high = high_bytes(x[0], x[1]);
  const Ints last_low = low_bytes(x[2], x[3]), last_high = high_bytes(x[2], x[3]);
  x[0] = low_words(low, last_low);
  x[1] = high_words(low, last_low);
  x[2] = low_words(high, last_high);
  x[3] = high_words(high, last_high);
}

#endif

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
