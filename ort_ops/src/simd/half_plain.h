// What simd/halves.h needs of 16 bytes, in plain vectors of the compiler.
#pragma once

#include "simd/half.h"

namespace tamiz {
namespace TAMIZ_TARGET {

TAMIZ_ALWAYS_INLINE Floats4 half_max(Floats4 a, Floats4 b) { return choose(a > b, a, b); }
TAMIZ_ALWAYS_INLINE Floats4 half_min(Floats4 a, Floats4 b) { return choose(a < b, a, b); }
TAMIZ_ALWAYS_INLINE Doubles2 low_doubles(Floats4 x) {
  const Doubles2 doubles = {x[0], x[1]};
  return doubles;
}
TAMIZ_ALWAYS_INLINE Doubles2 high_doubles(Floats4 x) {
  const Doubles2 doubles = {x[2], x[3]};
  return doubles;
}
TAMIZ_ALWAYS_INLINE Floats4 join_doubles(Doubles2 low, Doubles2 high) {
  const Floats4 floats = {static_cast<float>(low[0]), static_cast<float>(low[1]),
                          static_cast<float>(high[0]), static_cast<float>(high[1])};
  return floats;
}
TAMIZ_ALWAYS_INLINE Floats4 half_to_floats(Ints4 x) { return __builtin_convertvector(x, Floats4); }
/// Ties to even: 1.5 * 2^23 leaves no bits behind the point. For |x| < 2^22.
TAMIZ_ALWAYS_INLINE Ints4 half_to_ints(Floats4 x) {
  const Floats4 magic = all_of<Floats4>(12582912.0f);
  return as<Ints4>(x + magic) - as<Ints4>(magic);
}
TAMIZ_ALWAYS_INLINE Ints4 half_ints_max(Ints4 a, Ints4 b) {
  const Ints4 above = a > b;
  return (above & a) | (~above & b);
}
TAMIZ_ALWAYS_INLINE Ints4 half_dot_pairs(Ints4 sum, Ints4 a, Ints4 b) {
  const Ints4 even = ((a << 16) >> 16) * ((b << 16) >> 16);
  return sum + even + (a >> 16) * (b >> 16);
}
TAMIZ_ALWAYS_INLINE Ints4 half_pack_words(Ints4 a, Ints4 b) {
  return as<Ints4>(TAMIZ_SHUFFLE(Words8, as<Words8>(a), as<Words8>(b), 0, 4, 2, 6, 8, 12, 10, 14));
}
TAMIZ_ALWAYS_INLINE uint32_t first_bits(Ints4 x) {
  const Ints4 bits = {1, 2, 4, 8};
  return static_cast<uint32_t>(half_sum(x & bits));
}
TAMIZ_ALWAYS_INLINE uint32_t first_byte_bits(UBytes16 x) {
  uint32_t bits = 0;
  for (int i = 0; i < 16; ++i) bits |= static_cast<uint32_t>(x[i] >> 7) << i;
  return bits;
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz

#include "simd/half_baseline.h"
