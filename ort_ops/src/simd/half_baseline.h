// What simd/halves.h needs of 16 bytes and neither SSE2 nor plain vectors have an instruction for.
#pragma once

#include "simd/half.h"

namespace tamiz {
namespace TAMIZ_TARGET {

/// a b + c of doubles that floats became, rounded to odd: rounded to floats it is then as if
/// rounded once (Boldo and Melquiond 2008). The product is exact, and so is the error e of the sum
/// (Knuth).
TAMIZ_ALWAYS_INLINE Doubles2 fma_to_odd(Doubles2 a, Doubles2 b, Doubles2 c) {
  const Doubles2 product = a * b, sum = product + c, zero = {};
  const Doubles2 of_c = sum - product;
  const Doubles2 e = (product - (sum - of_c)) + (c - of_c);
  const ULongs2 inexact = as<ULongs2>((e < zero) | (e > zero)) >> 63;
  const ULongs2 beyond = (as<ULongs2>(e) ^ as<ULongs2>(sum)) >> 63;  // |sum| is too large
  return as<Doubles2>((as<ULongs2>(sum) - (beyond & inexact)) | inexact);
}
__attribute__((noinline)) inline Floats4 fma_by_odd(Floats4 a, Floats4 b, Floats4 c) {
  return join_doubles(fma_to_odd(low_doubles(a), low_doubles(b), low_doubles(c)),
                      fma_to_odd(high_doubles(a), high_doubles(b), high_doubles(c)));
}
/// A sum of doubles that is rounded to a float is as if rounded once, unless it lies in the middle
/// of two floats, to where it may have been rounded, or is below the normal floats.
TAMIZ_ALWAYS_INLINE Floats4 half_fma(Floats4 a, Floats4 b, Floats4 c) {
  const Doubles2 low = low_doubles(a) * low_doubles(b) + low_doubles(c);
  const Doubles2 high = high_doubles(a) * high_doubles(b) + high_doubles(c);
  const Floats4 sum = join_doubles(low, high);
  const Ints4 last_bits = TAMIZ_SHUFFLE(Ints4, as<Ints4>(low), as<Ints4>(high), 0, 2, 4, 6);
  const Ints4 middle = (last_bits & 0x1fffffff) == 0x10000000;
  const Ints4 tiny = half_abs(sum) < all_of<Floats4>(0x1p-126f);
  if (__builtin_expect(first_bits(middle | tiny) != 0, 0)) return fma_by_odd(a, b, c);
  return sum;
}

/// Ties to even; from 2^23 on floats are whole.
TAMIZ_ALWAYS_INLINE Floats4 half_round(Floats4 x) {
  const Ints4 sign = as<Ints4>(x) & all_of<Ints4>(INT32_MIN);
  const Floats4 whole = all_of<Floats4>(8388608.0f);
  const Floats4 rounded = as<Floats4>(as<Ints4>((half_abs(x) + whole) - whole) | sign);
  return choose(half_abs(x) < whole, rounded, x);
}
TAMIZ_ALWAYS_INLINE Floats4 half_floor(Floats4 x) {
  const Floats4 rounded = half_round(x);
  const Floats4 one = all_of<Floats4>(1.0f);
  return rounded - as<Floats4>((rounded > x) & as<Ints4>(one));
}
TAMIZ_ALWAYS_INLINE Floats4 add_pairs(Floats4 a, Floats4 b) {
  return TAMIZ_SHUFFLE(Ints4, a, b, 0, 2, 4, 6) + TAMIZ_SHUFFLE(Ints4, a, b, 1, 3, 5, 7);
}
/// Byte x of the table; every x is below 16.
TAMIZ_ALWAYS_INLINE Ints4 half_look_up(UBytes16 table, Ints4 x) {
  alignas(16) uint8_t from[16], index[16], found[16];
  memcpy(from, &table, sizeof from);
  memcpy(index, &x, sizeof index);
  for (int i = 0; i < 16; ++i) found[i] = from[index[i]];
  return read<Ints4>(found);
}
TAMIZ_ALWAYS_INLINE Floats4 half_pick_of_eight(const float* table, Ints4 x) {
  const Floats4 found = {table[x[0] & 7], table[x[1] & 7], table[x[2] & 7], table[x[3] & 7]};
  return found;
}
/// fp16 in the low words of integers whose high words are 0: the exponents' offsets are 127 and 15.
TAMIZ_ALWAYS_INLINE Floats4 wide_halves_to_floats(Ints4 halves) {
  const Ints4 sign = (halves & 0x8000) << 16, rest = (halves & 0x7fff) << 13;
  const Ints4 value = as<Ints4>(as<Floats4>(rest) * all_of<Floats4>(0x1p112f));
  const Ints4 odd = rest > 0x0f7fffff;  // infinities and NaN
  return as<Floats4>((~odd & value) | (odd & (rest | 0x7f800000)) | sign);
}
TAMIZ_ALWAYS_INLINE Floats4 low_halves_to_floats(Words8 halves) {
  const Ints4 zero = {};
  return wide_halves_to_floats(half_low_words(as<Ints4>(halves), zero));
}
TAMIZ_ALWAYS_INLINE Floats4 high_halves_to_floats(Words8 halves) {
  const Ints4 zero = {};
  return wide_halves_to_floats(half_high_words(as<Ints4>(halves), zero));
}

TAMIZ_ALWAYS_INLINE UBytes16 byte_counts(Ints4 x) {
  const UBytes16 bytes = as<UBytes16>(x);
  const uint8_t twos = 0x33, fours = 0x0f, ones = 0x55;
  UBytes16 count = bytes - ((bytes >> 1) & ones);
  count = (count & twos) + ((count >> 2) & twos);
  return (count + (count >> 4)) & fours;
}
TAMIZ_ALWAYS_INLINE Ints4 sum_of_int(UBytes16 x) {
  const Ints4 pairs = (as<Ints4>(x) & 0x00ff00ff) + (as<Ints4>(as<UInts4>(x) >> 8) & 0x00ff00ff);
  return (pairs & 0xffff) + as<Ints4>(as<UInts4>(pairs) >> 16);
}
TAMIZ_ALWAYS_INLINE Longs2 sum_of_long(UBytes16 x) {
  const Longs2 both = as<Longs2>(sum_of_int(x));
  return (both & INT64_C(0xffffffff)) + as<Longs2>(as<ULongs2>(both) >> 32);
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
