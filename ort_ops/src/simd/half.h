// 16 bytes as the compiler's vectors of GCC and Clang, and what needs no instruction of its own.
#pragma once

#include <stdint.h>
#include <string.h>

#include "simd/target.h"

namespace tamiz {
namespace TAMIZ_TARGET {

using Floats4 = float __attribute__((vector_size(16)));
using Doubles2 = double __attribute__((vector_size(16)));
using Ints4 = int32_t __attribute__((vector_size(16)));
using UInts4 = uint32_t __attribute__((vector_size(16)));
using Words8 = int16_t __attribute__((vector_size(16)));
using UWords8 = uint16_t __attribute__((vector_size(16)));
using Bytes16 = int8_t __attribute__((vector_size(16)));
using UBytes16 = uint8_t __attribute__((vector_size(16)));
using Longs2 = int64_t __attribute__((vector_size(16)));
using ULongs2 = uint64_t __attribute__((vector_size(16)));

/// Elements of a and b, which are numbered through; `mask`: integers as large as they are.
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define TAMIZ_SHUFFLE(mask, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#endif
#endif
#if !defined(TAMIZ_SHUFFLE)
#define TAMIZ_SHUFFLE(mask, a, b, ...) __builtin_shuffle(a, b, mask{__VA_ARGS__})
#endif

/// The same bits.
template <class T, class F>
TAMIZ_ALWAYS_INLINE T as(F x) {
  static_assert(sizeof(T) == sizeof(F), "");
  return (T)x;
}
template <class T>
TAMIZ_ALWAYS_INLINE T read(const void* p) {
  T x;
  memcpy(&x, p, sizeof x);
  return x;
}
template <class T, class E>
TAMIZ_ALWAYS_INLINE T all_of(E x) {
  const T zero = {};
  return x - zero;
}

TAMIZ_ALWAYS_INLINE Floats4 choose(Ints4 mask, Floats4 yes, Floats4 no) {
  return as<Floats4>((mask & as<Ints4>(yes)) | (~mask & as<Ints4>(no)));
}
TAMIZ_ALWAYS_INLINE Floats4 half_abs(Floats4 x) {
  return as<Floats4>(as<Ints4>(x) & all_of<Ints4>(INT32_MAX));
}

TAMIZ_ALWAYS_INLINE Ints4 half_low_bytes(Ints4 a, Ints4 b) {
  return as<Ints4>(TAMIZ_SHUFFLE(Bytes16, as<Bytes16>(a), as<Bytes16>(b), 0, 16, 1, 17, 2, 18, 3,
                                 19, 4, 20, 5, 21, 6, 22, 7, 23));
}
TAMIZ_ALWAYS_INLINE Ints4 half_high_bytes(Ints4 a, Ints4 b) {
  return as<Ints4>(TAMIZ_SHUFFLE(Bytes16, as<Bytes16>(a), as<Bytes16>(b), 8, 24, 9, 25, 10, 26, 11,
                                 27, 12, 28, 13, 29, 14, 30, 15, 31));
}
TAMIZ_ALWAYS_INLINE Ints4 half_low_words(Ints4 a, Ints4 b) {
  return as<Ints4>(TAMIZ_SHUFFLE(Words8, as<Words8>(a), as<Words8>(b), 0, 8, 1, 9, 2, 10, 3, 11));
}
TAMIZ_ALWAYS_INLINE Ints4 half_high_words(Ints4 a, Ints4 b) {
  return as<Ints4>(TAMIZ_SHUFFLE(Words8, as<Words8>(a), as<Words8>(b), 4, 12, 5, 13, 6, 14, 7, 15));
}
TAMIZ_ALWAYS_INLINE Ints4 half_low_ints(Ints4 a, Ints4 b) {
  return TAMIZ_SHUFFLE(Ints4, a, b, 0, 4, 1, 5);
}
TAMIZ_ALWAYS_INLINE Ints4 half_high_ints(Ints4 a, Ints4 b) {
  return TAMIZ_SHUFFLE(Ints4, a, b, 2, 6, 3, 7);
}
TAMIZ_ALWAYS_INLINE Ints4 half_low_longs(Ints4 a, Ints4 b) {
  return TAMIZ_SHUFFLE(Ints4, a, b, 0, 1, 4, 5);
}
TAMIZ_ALWAYS_INLINE Ints4 half_high_longs(Ints4 a, Ints4 b) {
  return TAMIZ_SHUFFLE(Ints4, a, b, 2, 3, 6, 7);
}

/// Unsigned bytes of a times signed bytes of b, added in pairs to words.
TAMIZ_ALWAYS_INLINE Ints4 half_dot_bytes(Ints4 a, Ints4 b) {
  const Words8 even_a = as<Words8>(as<UWords8>(a) & static_cast<uint16_t>(255));
  const Words8 odd_a = as<Words8>(as<UWords8>(a) >> 8);
  const Words8 even_b = as<Words8>(as<UWords8>(b) << 8) >> 8;
  return as<Ints4>(even_a * even_b + odd_a * (as<Words8>(b) >> 8));
}

TAMIZ_ALWAYS_INLINE int half_sum(Ints4 x) { return (x[0] + x[2]) + (x[1] + x[3]); }

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
