// The vectors of simd/simd.h and simd/simd_int.h against plain loops. CMake compiles this file once
// per level (simd/target.h).
#include "simd/simd.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "simd/simd_int.h"
#include "tests/check.h"
#include "tests/tests.h"

namespace tamiz {
namespace TAMIZ_TARGET {
namespace {

constexpr int kMost = 16;  // lanes of any level
#if defined(TAMIZ_DOT_SIGNED)
[[maybe_unused]] constexpr int kMostByte = 127;
#else
[[maybe_unused]] constexpr int kMostByte = 255;
#endif

const float kValues[kMost] = {1.5f,  -2.25f, 0.0f,   -0.0f, 3e5f,   -7e-3f, 0.5f,  2.5f,
                              -1.5f, 100.0f, -0.25f, 9.75f, -64.0f, 1e-20f, 31.0f, -8.5f};
const float kOthers[kMost] = {-1.0f, 2.0f,   4.0f, 0.5f,  -3.0f, 1e3f,  -0.5f, 2.5f,
                              7.0f,  -99.5f, 1.0f, -2.0f, 0.75f, 11.0f, 3.0f,  -8.0f};

/// Whether a vector has the bits of `expected`, lane by lane.
bool same(Vec found, const float* expected) {
  float lanes[kLanes];
  store(lanes, found);
  return !memcmp(lanes, expected, sizeof lanes);
}

#define CHECK_LANES(found, formula, context)                  \
  do {                                                        \
    float expected[kLanes];                                   \
    for (int i = 0; i < kLanes; ++i) expected[i] = (formula); \
    CHECK(same((found), expected), context);                  \
  } while (false)

void test_floats(const float* a, const float* b) {
  const Vec x = load(a), y = load(b);
  CHECK_LANES(x, a[i], "load");
  CHECK_LANES(broadcast(2.5f), 2.5f, "broadcast");
  CHECK_LANES(max(x, y), a[i] > b[i] ? a[i] : b[i], "max");
  CHECK_LANES(min(x, y), a[i] < b[i] ? a[i] : b[i], "min");
  CHECK_LANES(round(x), rintf(a[i]), "round");
  CHECK_LANES(select_le(x, y, x, broadcast(5.0f)), a[i] <= b[i] ? a[i] : 5.0f, "select_le");
  CHECK_LANES(fma(x, y, broadcast(1.0f)), fmaf(a[i], b[i], 1.0f), "fma");
#if defined(TAMIZ_VECTORS)
  CHECK_LANES(abs(x), fabsf(a[i]), "abs");
  CHECK_LANES(floor(x), floorf(a[i]), "floor");
  CHECK_LANES(times_power_of_two(x, broadcast(-3.0f)), ldexpf(a[i], -3), "times_power_of_two");
#endif
  float top = a[0], total = 0, size = 0;
  for (int i = 0; i < kLanes; ++i) {
    top = a[i] > top ? a[i] : top;
    total += a[i];
    size += fabsf(a[i]);
  }
  CHECK(largest(x) == top, "largest");
  CHECK(fabsf(sum(x) - total) <= size * 1e-6f, "sum");
}

/// Products and sums that are close to the middle of two floats, or no floats of full precision.
void test_fma() {
  uint32_t state = 1;
  const auto next = [&](uint32_t exponents) {
    state = state * 1664525 + 1013904223;
    const uint32_t bits = (state & 0x80000000u) |
                          (127 - exponents / 2 + (state >> 8) % exponents) << 23 |
                          (state >> 9 & 0x7ff) << (state >> 28);
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
  };
  for (int round = 0; round < 20000; ++round) {
    float a[kLanes], b[kLanes], c[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      a[i] = next(8);
      b[i] = next(round % 2 ? 8 : 240);
      c[i] = next(60);
    }
    CHECK_LANES(fma(load(a), load(b), load(c)), fmaf(a[i], b[i], c[i]), "fma of any floats");
  }
}

void test_partial() {
  for (int64_t n = 1; n < kLanes; ++n) {
    float memory[kLanes];
    CHECK_LANES(load_partial(kValues, n), i < n ? kValues[i] : 0.0f, "load_partial");
    for (float& value : memory) value = 42.0f;
    store_partial(memory, load(kValues), n);
    for (int i = 0; i < kLanes; ++i) {
      const float expected = i < n ? kValues[i] : 42.0f;
      CHECK(memcmp(&memory[i], &expected, sizeof expected) == 0, "store_partial");
    }
  }
}

/// The documented errors of exp and exp2 (relative 2e-7) and of sine and cosine (absolute
/// 2e-7), and one rounding of the expected value.
void test_functions() {
  for (float start = -80.0f; start < 80.0f; start += 0.37f) {
    float x[kLanes], found[kLanes], powers[kLanes], sines[kLanes], cosines[kLanes];
    for (int i = 0; i < kLanes; ++i) x[i] = start + 0.013f * static_cast<float>(i);
    store(found, exp(load(x)));
    store(powers, exp2(load(x)));
    Vec sine, cosine;
    sincos(load(x), sine, cosine);
    store(sines, sine);
    store(cosines, cosine);
    for (int i = 0; i < kLanes; ++i) {
      const double expected = ::exp(static_cast<double>(x[i]));
      CHECK(fabs(found[i] - expected) <= 3e-7 * expected, "exp");
      const double power = ::exp2(static_cast<double>(x[i]));
      CHECK(fabs(powers[i] - power) <= 3e-7 * power, "exp2");
      CHECK(fabs(sines[i] - ::sin(static_cast<double>(x[i]))) <= 3e-7, "sine");
      CHECK(fabs(cosines[i] - ::cos(static_cast<double>(x[i]))) <= 3e-7, "cosine");
    }
  }
  const float limits[] = {-INFINITY, INFINITY, NAN, 1000.0f};
  for (const float limit : limits) {
    float found[kLanes];
    store(found, exp(broadcast(limit)));
    const float expected = ::expf(limit);
    CHECK(found[0] == expected || (found[0] != found[0] && expected != expected), "limits of exp");
  }
}

void test_sums_of_lanes() {
  float rows[kMost * kMost];
  for (int i = 0; i < kLanes * kLanes; ++i) rows[i] = static_cast<float>(i * 37 % 101 - 50);
  float found[kLanes];
  Vec quads[kLanes / kQuad];
  for (int i = 0; i < kLanes / kQuad; ++i) {
    Vec x[kQuad];
    for (int j = 0; j < kQuad; ++j) x[j] = load(rows + (i * kQuad + j) * kLanes);
    quads[i] = sum_quad(x);
  }
  store(found, join_quads(quads));
  for (int r = 0; r < kLanes; ++r) {
    float total = 0;  // whole numbers: any order gives the same sum
    for (int i = 0; i < kLanes; ++i) total += rows[r * kLanes + i];
    CHECK(found[r] == total, "join_quads");
  }
}

struct Bytes {
  int8_t bytes[64];
  int16_t words[32];
  int32_t ints[16];
};

Bytes pattern(int factor) {
  Bytes made;
  for (int i = 0; i < 64; ++i) made.bytes[i] = static_cast<int8_t>(i * factor % 251 - 125);
  memcpy(made.words, made.bytes, 64);
  memcpy(made.ints, made.bytes, 64);
  return made;
}

#define CHECK_INTS(found, formula, context)                                 \
  do {                                                                      \
    int32_t lanes[kLanes];                                                  \
    store_ints(lanes, (found));                                             \
    for (int i = 0; i < kLanes; ++i) CHECK(lanes[i] == (formula), context); \
  } while (false)

/// What every target has.
void test_words() {
  constexpr int kBytes = 4 * kLanes;
  int8_t rows[kMost][4 * kMost];
  for (int r = 0; r < kMost; ++r) {
    for (int i = 0; i < 4 * kMost; ++i) rows[r][i] = static_cast<int8_t>(r * 57 + i * 31);
  }
  Ints x[kLanes], quads[4], words[4];
  for (int i = 0; i < kLanes; ++i) x[i] = load_ints(rows[i]);
  transpose(x);
  for (int j = 0; j < kLanes; ++j) {
    int32_t column[kLanes];
    for (int i = 0; i < kLanes; ++i) memcpy(&column[i], rows[i] + 4 * j, 4);
    CHECK_INTS(x[j], column[i], "transpose");
  }
  for (int r = 0; r < 4; ++r) quads[r] = load_ints(rows[r]);
  interleave_bytes(quads);
  for (int v = 0; v < 4; ++v) {
    int8_t bytes[kBytes];
    store_ints(bytes, quads[v]);
    for (int i = 0; i < kBytes; ++i) {
      CHECK(bytes[i] == rows[i % 4][v * kLanes + i / 4], "interleave_bytes");
    }
  }
  int32_t ints[kBytes];
  for (int i = 0; i < kBytes; ++i) ints[i] = i * 1021 - 32767;
  for (int v = 0; v < 4; ++v) words[v] = load_ints(ints + v * kLanes);
  const Bytes p = pattern(7), q = pattern(13);
#if defined(TAMIZ_VECTORS)
  int16_t pairs[kBytes];
  pair_words(words, reinterpret_cast<int32_t*>(pairs));
  constexpr int kOrder[] = {0, 2, 1, 3};
  for (int i = 0; i < kBytes; ++i) {
    CHECK(pairs[i] == ints[i / 4 * 4 + kOrder[i % 4]], "pair_words");
  }
  CHECK_INTS(signed_words_right<8>(words_left<8>(load_ints(p.bytes))),
             (p.bytes[4 * i] & 0xffff) | p.bytes[4 * i + 2] * 65536, "even bytes as words");
  CHECK_INTS(signed_words_right<8>(load_ints(p.bytes)),
             (p.bytes[4 * i + 1] & 0xffff) | p.bytes[4 * i + 3] * 65536, "odd bytes as words");
  const auto shifted = [&](int i) { return static_cast<uint8_t>(p.bytes[i]) >> 4; };
  CHECK_INTS(bytes_right<4>(load_ints(p.bytes)),
             shifted(4 * i) | shifted(4 * i + 1) << 8 | shifted(4 * i + 2) << 16 |
                 shifted(4 * i + 3) << 24,
             "bytes_right");
#endif
#if defined(TAMIZ_DOT) || defined(TAMIZ_SCALAR)
  uint8_t low[kBytes];
  for (int v = 0; v < 4; ++v) store_low_bytes(low + v * kLanes, words[v]);
  for (int i = 0; i < kBytes; ++i) CHECK(low[i] == (ints[i] & 255), "store_low_bytes");
  uint8_t u[4 * kMost];
  for (int i = 0; i < 4 * kMost; ++i) u[i] = static_cast<uint8_t>(p.bytes[i]) & kMostByte;
  const int8_t* const v = q.bytes;
  CHECK_INTS(dot_quads(all_ints(5), load_ints(u), load_ints(v)),
             5 + u[4 * i] * v[4 * i] + u[4 * i + 1] * v[4 * i + 1] + u[4 * i + 2] * v[4 * i + 2] +
                 u[4 * i + 3] * v[4 * i + 3],
             "dot_quads");
#endif
#if defined(TAMIZ_DOT) && defined(TAMIZ_HALVES)
  CHECK_INTS(
      dot_quad<6>(all_ints(5), load_ints(u), load_ints(v)),
      5 + u[4 * i] * v[24] + u[4 * i + 1] * v[25] + u[4 * i + 2] * v[26] + u[4 * i + 3] * v[27],
      "dot_quad");
#endif
  const Ints a = load_ints(p.ints), b = load_ints(q.ints);
  const auto of = [](int32_t x) { return static_cast<uint32_t>(x); };
  CHECK_INTS(ints_plus(a, b), static_cast<int32_t>(of(p.ints[i]) + of(q.ints[i])), "ints_plus");
  CHECK_INTS(ints_minus(a, b), static_cast<int32_t>(of(p.ints[i]) - of(q.ints[i])), "ints_minus");
  CHECK_INTS(ints_right<5>(a), static_cast<int32_t>(of(p.ints[i]) >> 5), "ints_right");
  CHECK_INTS(ints_left<5>(a), static_cast<int32_t>(of(p.ints[i]) << 5), "ints_left");
  CHECK_LANES(to_float(all_ints(-12345)), -12345.0f, "to_float");
  CHECK_INTS(to_ints(load(kValues)), static_cast<int32_t>(lrintf(kValues[i])), "to_ints");
  CHECK_LANES(pick_of_eight(kValues, a), kValues[p.ints[i] & 7], "pick_of_eight");
}

#if defined(TAMIZ_VECTORS)

void test_ints() {
  const Bytes p = pattern(7), q = pattern(13);
  const Ints x = load_ints(p.ints), y = load_ints(q.ints);
  const int32_t *a = p.ints, *b = q.ints;
  CHECK_INTS(all_ints(-9), -9, "all_ints");
  CHECK_INTS(bits_and(x, y), (a[i] & b[i]), "bits_and");
  CHECK_INTS(bits_or(x, y), (a[i] | b[i]), "bits_or");
  CHECK_INTS(bits_xor(x, y), (a[i] ^ b[i]), "bits_xor");
  CHECK_INTS(ints_times(x, y), static_cast<int32_t>(uint32_t(a[i]) * uint32_t(b[i])), "ints_times");
  CHECK_INTS(ints_max(x, y), (a[i] > b[i] ? a[i] : b[i]), "ints_max");
  const int16_t *u = p.words, *v = q.words;
  CHECK_INTS(dot_pairs(x, x, y),
             static_cast<int32_t>(uint32_t(a[i]) + uint32_t(u[2 * i] * v[2 * i]) +
                                  uint32_t(u[2 * i + 1] * v[2 * i + 1])),
             "dot_pairs");
  int32_t top = a[0];
  uint32_t total = 0;
  for (int i = 0; i < kLanes; ++i) {
    top = a[i] > top ? a[i] : top;
    total += uint32_t(a[i]) >> 8;  // so that the sum does not overflow
  }
  CHECK(largest_int(x) == top, "largest_int");
  CHECK(sum_ints(ints_right<8>(x)) == static_cast<int32_t>(total), "sum_ints");
  const auto* const bytes = reinterpret_cast<const uint8_t*>(p.bytes);
  CHECK_INTS(wide_bytes(bytes), bytes[i], "wide_bytes");
  CHECK_INTS(wide_words(bytes), static_cast<uint16_t>(u[i]), "wide_words");
  CHECK_LANES(keep_lanes(load(kValues), 0x5a5a), (0x5a5a >> i & 1 ? kValues[i] : 0.0f),
              "keep_lanes");
  const float odd[kMost] = {1.9f,    -1.9f,  32767.0f, 40000.0f, -40000.0f, NAN,
                            0x1p31f, -1e30f, INFINITY, 0x1p30f,  -0.5f,     7.0f,
                            1e30f,   -7.5f,  NAN,      2e9f};
  const int16_t cut[kMost] = {1,      -1,    32767, 32767, -32768, -32768, -32768, -32768,
                              -32768, 32767, 0,     7,     -32768, -7,     -32768, 32767};
  int16_t words[kMost];
  asm volatile("" ::"r"(odd) : "memory");  // GCC would convert these itself, and otherwise
  store_as_words(words, load(odd));
  for (int i = 0; i < kLanes; ++i) CHECK(words[i] == cut[i], "store_as_words");
  CHECK_LANES(bytes_to_float(p.bytes), static_cast<float>(p.bytes[i]), "bytes_to_float");
}

#else

void test_ints() {}

#endif

}  // namespace

void test_simd() {
  test_floats(kValues, kOthers);
  test_floats(kOthers, kValues);
  test_fma();
  test_partial();
  test_functions();
  test_sums_of_lanes();
  test_words();
  test_ints();
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
