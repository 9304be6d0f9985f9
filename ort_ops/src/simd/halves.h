// Two vectors of 16 bytes as one of 8 lanes, in the compiler's own vectors, for any processor: the
// kernels of AVX2 run on them as they are. SSE2 and NEON give some instructions that compilers do
// not find (simd/half_sse2.h, half_neon.h); half_plain.h says the same in plain vectors.
// simd/simd.h and simd/simd_int.h say what the functions do.
#pragma once

#include <stdint.h>
#include <string.h>

#include "simd/half.h"
#include "simd/target.h"
#if defined(__aarch64__) && !defined(TAMIZ_PLAIN_HALVES)
#include "simd/half_neon.h"
#elif defined(__SSE2__) && !defined(TAMIZ_PLAIN_HALVES)
#include "simd/half_sse2.h"
#else
#include "simd/half_plain.h"
#endif

namespace tamiz {
namespace TAMIZ_TARGET {

struct Vec {
  Floats4 low, high;
};
struct Ints {
  Ints4 low, high;
};
constexpr int kLanes = 8;

#define TAMIZ_VEC TAMIZ_ALWAYS_INLINE Vec
#define TAMIZ_INTS TAMIZ_ALWAYS_INLINE Ints

// ---- floats ----

TAMIZ_VEC operator+(Vec a, Vec b) { return {a.low + b.low, a.high + b.high}; }
TAMIZ_VEC operator-(Vec a, Vec b) { return {a.low - b.low, a.high - b.high}; }
TAMIZ_VEC operator*(Vec a, Vec b) { return {a.low * b.low, a.high * b.high}; }
TAMIZ_VEC operator/(Vec a, Vec b) { return {a.low / b.low, a.high / b.high}; }

TAMIZ_VEC broadcast(float x) { return {all_of<Floats4>(x), all_of<Floats4>(x)}; }
TAMIZ_VEC load(const float* p) { return {read<Floats4>(p), read<Floats4>(p + 4)}; }
TAMIZ_ALWAYS_INLINE void store(float* p, Vec x) { memcpy(p, &x, sizeof x); }
TAMIZ_VEC load_partial(const float* p, int64_t n) {
  float lanes[kLanes] = {};
  memcpy(lanes, p, static_cast<size_t>(n) * sizeof(float));
  return load(lanes);
}
TAMIZ_ALWAYS_INLINE void store_partial(float* p, Vec x, int64_t n) {
  memcpy(p, &x, static_cast<size_t>(n) * sizeof(float));
}
TAMIZ_VEC fma(Vec a, Vec b, Vec c) {
  return {half_fma(a.low, b.low, c.low), half_fma(a.high, b.high, c.high)};
}
TAMIZ_VEC max(Vec a, Vec b) { return {half_max(a.low, b.low), half_max(a.high, b.high)}; }
TAMIZ_VEC min(Vec a, Vec b) { return {half_min(a.low, b.low), half_min(a.high, b.high)}; }
TAMIZ_VEC abs(Vec x) { return {half_abs(x.low), half_abs(x.high)}; }
TAMIZ_VEC round(Vec x) { return {half_round(x.low), half_round(x.high)}; }
TAMIZ_VEC floor(Vec x) { return {half_floor(x.low), half_floor(x.high)}; }
TAMIZ_ALWAYS_INLINE float sum(Vec x) {
  const Floats4 s = x.low + x.high;
  return (s[0] + s[2]) + (s[1] + s[3]);
}
TAMIZ_ALWAYS_INLINE float largest(Vec x) {
  Floats4 m = half_max(x.low, x.high);
  m = half_max(m, TAMIZ_SHUFFLE(Ints4, m, m, 2, 3, 2, 3));
  return m[0] > m[1] ? m[0] : m[1];
}
TAMIZ_VEC select_le(Vec a, Vec b, Vec yes, Vec no) {
  return {choose(a.low <= b.low, yes.low, no.low), choose(a.high <= b.high, yes.high, no.high)};
}
constexpr int kQuad = 4;
TAMIZ_VEC sum_quad(const Vec (&x)[kQuad]) {
  return {add_pairs(add_pairs(x[0].low, x[1].low), add_pairs(x[2].low, x[3].low)),
          add_pairs(add_pairs(x[0].high, x[1].high), add_pairs(x[2].high, x[3].high))};
}
constexpr int kLaneOrder[] = {0, 1, 2, 3, 4, 5, 6, 7};
TAMIZ_VEC join_quads(const Vec (&x)[kLanes / kQuad]) {
  return {x[0].low + x[0].high, x[1].low + x[1].high};
}

// ---- integers ----

TAMIZ_INTS load_ints(const void* p) {
  const auto* const bytes = static_cast<const uint8_t*>(p);
  return {read<Ints4>(bytes), read<Ints4>(bytes + 16)};
}
TAMIZ_ALWAYS_INLINE void store_ints(void* p, Ints x) { memcpy(p, &x, sizeof x); }
TAMIZ_INTS all_ints(int x) { return {all_of<Ints4>(x), all_of<Ints4>(x)}; }
TAMIZ_INTS all_words(int x) {
  const Ints4 words = as<Ints4>(all_of<Words8>(static_cast<int16_t>(x)));
  return {words, words};
}
TAMIZ_INTS all_longs(uint64_t x) {
  const Ints4 longs = as<Ints4>(all_of<Longs2>(static_cast<int64_t>(x)));
  return {longs, longs};
}

/// a op b of the elements that T has.
#define TAMIZ_EACH(name, T, op)                                                                  \
  TAMIZ_INTS name(Ints a, Ints b) {                                                              \
    return {as<Ints4>(as<T>(a.low) op as<T>(b.low)), as<Ints4>(as<T>(a.high) op as<T>(b.high))}; \
  }
TAMIZ_EACH(bits_and, UInts4, &)
TAMIZ_EACH(bits_or, UInts4, |)
TAMIZ_EACH(bits_xor, UInts4, ^)
TAMIZ_EACH(ints_plus, UInts4, +)
TAMIZ_EACH(ints_minus, UInts4, -)
TAMIZ_EACH(ints_times, UInts4, *)
TAMIZ_EACH(words_plus, UWords8, +)
TAMIZ_EACH(words_minus, UWords8, -)
TAMIZ_EACH(bytes_minus, UBytes16, -)
TAMIZ_EACH(longs_plus, ULongs2, +)
TAMIZ_EACH(longs_minus, ULongs2, -)
#undef TAMIZ_EACH

/// x op Bits of the elements that T has.
#define TAMIZ_SHIFT(name, T, op)                                                \
  template <int Bits>                                                           \
  TAMIZ_INTS name(Ints x) {                                                     \
    return {as<Ints4>(as<T>(x.low) op Bits), as<Ints4>(as<T>(x.high) op Bits)}; \
  }
TAMIZ_SHIFT(words_right, UWords8, >>)
TAMIZ_SHIFT(words_left, UWords8, <<)
TAMIZ_SHIFT(signed_words_right, Words8, >>)
TAMIZ_SHIFT(ints_right, UInts4, >>)
TAMIZ_SHIFT(bytes_right, UBytes16, >>)
TAMIZ_SHIFT(ints_left, UInts4, <<)
#undef TAMIZ_SHIFT

/// f(a, b), half by half.
#define TAMIZ_PAIRS(name, f) \
  TAMIZ_INTS name(Ints a, Ints b) { return {f(a.low, b.low), f(a.high, b.high)}; }
TAMIZ_PAIRS(low_bytes, half_low_bytes)
TAMIZ_PAIRS(high_bytes, half_high_bytes)
TAMIZ_PAIRS(low_words, half_low_words)
TAMIZ_PAIRS(high_words, half_high_words)
TAMIZ_PAIRS(low_ints, half_low_ints)
TAMIZ_PAIRS(high_ints, half_high_ints)
TAMIZ_PAIRS(low_longs, half_low_longs)
TAMIZ_PAIRS(high_longs, half_high_longs)
TAMIZ_PAIRS(dot_bytes, half_dot_bytes)
TAMIZ_PAIRS(ints_max, half_ints_max)
#undef TAMIZ_PAIRS

TAMIZ_INTS dot_pairs(Ints sum, Ints a, Ints b) {
  return {half_dot_pairs(sum.low, a.low, b.low), half_dot_pairs(sum.high, a.high, b.high)};
}
#if defined(TAMIZ_I8MM)
TAMIZ_INTS dot_eights(Ints sum, Ints a, Ints b) {
  return {half_dot_eights(sum.low, a.low, b.low), half_dot_eights(sum.high, a.high, b.high)};
}
TAMIZ_INTS even_ints(Ints a, Ints b) {
  return {TAMIZ_SHUFFLE(Ints4, a.low, b.low, 0, 2, 4, 6),
          TAMIZ_SHUFFLE(Ints4, a.high, b.high, 0, 2, 4, 6)};
}
TAMIZ_INTS odd_ints(Ints a, Ints b) {
  return {TAMIZ_SHUFFLE(Ints4, a.low, b.low, 1, 3, 5, 7),
          TAMIZ_SHUFFLE(Ints4, a.high, b.high, 1, 3, 5, 7)};
}
TAMIZ_INTS twice(const void* p) { return {read<Ints4>(p), read<Ints4>(p)}; }
#endif
#if defined(TAMIZ_DOT)
TAMIZ_INTS dot_quads(Ints sum, Ints a, Ints b) {
  return {half_dot_quads(sum.low, a.low, b.low), half_dot_quads(sum.high, a.high, b.high)};
}
template <int Quad>
TAMIZ_INTS dot_quad(Ints sum, Ints a, Ints b) {
  const Ints4 four = Quad < 4 ? b.low : b.high;
  return {half_dot_quad<Quad % 4>(sum.low, a.low, four),
          half_dot_quad<Quad % 4>(sum.high, a.high, four)};
}
TAMIZ_ALWAYS_INLINE bool any_bits(Ints x) { return half_any_bits(x.low | x.high); }
TAMIZ_ALWAYS_INLINE void store_low_bytes(void* p, Ints x) {
  const Bytes16 bytes = TAMIZ_SHUFFLE(Bytes16, as<Bytes16>(x.low), as<Bytes16>(x.high), 0, 4, 8, 12,
                                      16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
  memcpy(p, &bytes, kLanes);
}
#endif

TAMIZ_VEC to_float(Ints x) { return {half_to_floats(x.low), half_to_floats(x.high)}; }
TAMIZ_INTS to_ints(Vec x) { return {half_to_ints(x.low), half_to_ints(x.high)}; }
TAMIZ_INTS float_bits(Vec x) { return {as<Ints4>(x.low), as<Ints4>(x.high)}; }
TAMIZ_VEC bits_float(Ints x) { return {as<Floats4>(x.low), as<Floats4>(x.high)}; }
TAMIZ_ALWAYS_INLINE int largest_int(Ints x) {
  Ints4 m = half_ints_max(x.low, x.high);
  m = half_ints_max(m, TAMIZ_SHUFFLE(Ints4, m, m, 2, 3, 2, 3));
  return m[0] > m[1] ? m[0] : m[1];
}
TAMIZ_ALWAYS_INLINE int sum_ints(Ints x) { return half_sum(x.low + x.high); }
TAMIZ_ALWAYS_INLINE void sum_each_half(Ints x, int32_t* to) {
  to[0] = half_sum(x.low);
  to[1] = half_sum(x.high);
}
TAMIZ_INTS pack_words(Ints a, Ints b) {
  return {half_pack_words(a.low, a.high), half_pack_words(b.low, b.high)};
}
TAMIZ_VEC keep_lanes(Vec x, uint32_t bits) {
  const Ints4 all = all_of<Ints4>(static_cast<int>(bits));
  const Ints4 low = {1, 2, 4, 8}, high = {16, 32, 64, 128};
  return {as<Floats4>(as<Ints4>(x.low) & ((all & low) == low)),
          as<Floats4>(as<Ints4>(x.high) & ((all & high) == high))};
}
TAMIZ_INTS look_up(const uint8_t* table, Ints x) {
  const UBytes16 bytes = read<UBytes16>(table);
  return {half_look_up(bytes, x.low), half_look_up(bytes, x.high)};
}
TAMIZ_INTS gather_ints(const uint32_t* table, Ints x) {
  Ints found = x;
  for (int i = 0; i < 4; ++i) {
    found.low[i] = static_cast<int>(table[x.low[i]]);
    found.high[i] = static_cast<int>(table[x.high[i]]);
  }
  return found;
}
TAMIZ_VEC pick_of_eight(const float* table, Ints x) {
  return {half_pick_of_eight(table, x.low), half_pick_of_eight(table, x.high)};
}
TAMIZ_INTS negate_bytes(Ints x, Ints flags, int bit) {
  const UBytes16 one = all_of<UBytes16>(static_cast<uint8_t>(1 << bit));
  const auto half = [one](Ints4 bytes, Ints4 set) {
    const auto wanted = as<UBytes16>((as<UBytes16>(set) & one) == one);
    return as<Ints4>((as<UBytes16>(bytes) ^ wanted) - wanted);
  };
  return {half(x.low, flags.low), half(x.high, flags.high)};
}
TAMIZ_INTS low_words_twice(Ints x) {
  const Ints low = bits_and(x, all_ints(0xffff));
  return bits_or(low, ints_left<16>(low));
}
TAMIZ_INTS wide_words(const uint8_t* p) {
  const Ints4 words = read<Ints4>(p), zero = {};
  return {half_low_words(words, zero), half_high_words(words, zero)};
}
TAMIZ_INTS wide_bytes(const uint8_t* p) {
  const ULongs2 bytes = {read<uint64_t>(p), 0};
  const Ints4 zero = {}, words = half_low_bytes(as<Ints4>(bytes), zero);
  return {half_low_words(words, zero), half_high_words(words, zero)};
}
TAMIZ_VEC bytes_to_float(const int8_t* p) {
  const Ints wide = wide_bytes(reinterpret_cast<const uint8_t*>(p));
  return to_float({(wide.low << 24) >> 24, (wide.high << 24) >> 24});
}
TAMIZ_VEC load_halves(const uint8_t* p) {
  const Words8 halves = read<Words8>(p);
  return {low_halves_to_floats(halves), high_halves_to_floats(halves)};
}
TAMIZ_VEC halves_to_float(Ints x) {
  const Words8 halves =
      TAMIZ_SHUFFLE(Words8, as<Words8>(x.low), as<Words8>(x.high), 0, 2, 4, 6, 8, 10, 12, 14);
  return {low_halves_to_floats(halves), high_halves_to_floats(halves)};
}
TAMIZ_VEC power_of_two(Ints n) { return bits_float(ints_left<23>(ints_plus(n, all_ints(127)))); }
/// In two steps, because 2^n itself may be no float where x * 2^n is one.
TAMIZ_VEC times_power_of_two(Vec x, Vec n) {
  const Ints all = to_ints(n), half = {all.low >> 1, all.high >> 1};
  return x * power_of_two(half) * power_of_two(ints_minus(all, half));
}
TAMIZ_INTS gather_fourths(Ints x) {
  return {TAMIZ_SHUFFLE(Ints4, x.low, x.high, 0, 2, 4, 6),
          TAMIZ_SHUFFLE(Ints4, x.low, x.high, 1, 3, 5, 7)};
}
TAMIZ_ALWAYS_INLINE void join_columns(const Ints (&quads)[kLanes], Ints (&x)[kLanes]) {
  for (int i = 0; i < 4; ++i) {
    x[i] = {quads[i].low, quads[4 + i].low};
    x[4 + i] = {quads[i].high, quads[4 + i].high};
  }
}

// ---- for few kernels ----

TAMIZ_ALWAYS_INLINE uint32_t lanes_above(Vec a, Vec b) {
  return first_bits(a.low > b.low) | first_bits(a.high > b.high) << 4;
}
TAMIZ_VEC butterfly(Vec x, int half) {
  if (half == 4) return {x.low + x.high, x.low - x.high};
  const auto of = [half](Floats4 v) {
    const Floats4 other =
        half == 1 ? TAMIZ_SHUFFLE(Ints4, v, v, 1, 0, 3, 2) : TAMIZ_SHUFFLE(Ints4, v, v, 2, 3, 0, 1);
    const Ints4 lane = {0, 1, 2, 3};
    return choose((lane & half) != 0, other - v, other + v);
  };
  return {of(x.low), of(x.high)};
}
TAMIZ_VEC every(const float* p, int64_t step) {
  float lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) lanes[i] = p[i * step];
  return load(lanes);
}
TAMIZ_INTS every_long(const float* p, int step) {
  uint64_t longs[kLanes / 2];
  for (int i = 0; i < kLanes / 2; ++i) memcpy(longs + i, p + i * step, sizeof(uint64_t));
  return load_ints(longs);
}
TAMIZ_INTS sum_sides(Ints a, Ints b) { return {a.low + a.high, b.low + b.high}; }
TAMIZ_INTS long_counts(Ints x) {
  return {as<Ints4>(sum_of_long(byte_counts(x.low))), as<Ints4>(sum_of_long(byte_counts(x.high)))};
}
TAMIZ_INTS count_difference(Ints plus, Ints minus) {
  const auto of = [](Ints4 p, Ints4 m) {
    return sum_of_int(byte_counts(p)) - sum_of_int(byte_counts(m));
  };
  return {of(plus.low, minus.low), of(plus.high, minus.high)};
}
TAMIZ_VEC longs_to_float(Ints low, Ints high) {
  return to_float({TAMIZ_SHUFFLE(Ints4, low.low, low.high, 0, 2, 4, 6),
                   TAMIZ_SHUFFLE(Ints4, high.low, high.high, 0, 2, 4, 6)});
}
TAMIZ_ALWAYS_INLINE void store_as_words(int16_t* to, Vec x) {
  float lanes[kLanes];
  store(lanes, x);
  for (int i = 0; i < kLanes; ++i) {
    const float least = lanes[i] > INT16_MIN ? lanes[i] : INT16_MIN;  // also of NaN
    to[i] = static_cast<int16_t>(least < INT16_MAX ? least : INT16_MAX);
    if (!(lanes[i] < 0x1p31f)) to[i] = INT16_MIN;
  }
}
TAMIZ_ALWAYS_INLINE uint32_t nonzero_bytes(const uint8_t* p) {
  const UBytes16 zero = {};
  return first_byte_bits(as<UBytes16>(read<UBytes16>(p) != zero)) |
         first_byte_bits(as<UBytes16>(read<UBytes16>(p + 16) != zero)) << 16;
}
TAMIZ_ALWAYS_INLINE uint32_t words_at_least(const uint16_t* p, uint16_t least) {
  const auto of = [least](const uint16_t* sixteen) {
    const UWords8 t = all_of<UWords8>(least);
    const Bytes16 first = as<Bytes16>(read<UWords8>(sixteen) >= t);
    const Bytes16 last = as<Bytes16>(read<UWords8>(sixteen + 8) >= t);
    return first_byte_bits(as<UBytes16>(TAMIZ_SHUFFLE(Bytes16, first, last, 0, 2, 4, 6, 8, 10, 12,
                                                      14, 16, 18, 20, 22, 24, 26, 28, 30)));
  };
  return of(p) | of(p + 16) << 16;
}
#if defined(TAMIZ_DOT)
TAMIZ_ALWAYS_INLINE void split_words(const int16_t* p, int8_t* to) {
  for (int i = 0; i < 2; ++i) {
    const Words8 offset = all_of<Words8>(int16_t{128});
    const Bytes16 a = as<Bytes16>(read<Words8>(p + 16 * i) + offset);
    const Bytes16 b = as<Bytes16>(read<Words8>(p + 16 * i + 8) + offset);
    const Bytes16 high =
        TAMIZ_SHUFFLE(Bytes16, a, b, 1, 5, 3, 7, 9, 13, 11, 15, 17, 21, 19, 23, 25, 29, 27, 31);
    const Bytes16 low =
        TAMIZ_SHUFFLE(Bytes16, a, b, 0, 4, 2, 6, 8, 12, 10, 14, 16, 20, 18, 22, 24, 28, 26, 30) ^
        all_of<Bytes16>(int8_t{-128});
    memcpy(to + 16 * i, &high, sizeof high);
    memcpy(to + 32 + 16 * i, &low, sizeof low);
  }
}
#endif
#if defined(TAMIZ_I8MM)
TAMIZ_ALWAYS_INLINE void split_eights(const int16_t* p, int8_t* to) {
  const Bytes16 low_offset = {0,    0,    0,    0,    0,    0,    0,    0,
                              -128, -128, -128, -128, -128, -128, -128, -128};
  for (int i = 0; i < 4; ++i) {
    const Bytes16 x = as<Bytes16>(read<Words8>(p + 8 * i) + all_of<Words8>(int16_t{128}));
    const Bytes16 bytes =
        TAMIZ_SHUFFLE(Bytes16, x, x, 1, 5, 3, 7, 9, 13, 11, 15, 0, 4, 2, 6, 8, 12, 10, 14) ^
        low_offset;
    memcpy(to + 16 * i, &bytes, sizeof bytes);
  }
}
#endif

#undef TAMIZ_VEC
#undef TAMIZ_INTS

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
