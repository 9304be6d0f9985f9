// Sum:      y = x + residual
// RMSNorm:  s = x + residual,  y = s / sqrt(mean(s^2) + epsilon) * weight
// LayerNorm:  s = x + residual,  y = (s - mean(s)) / sqrt(var(s) + epsilon) * weight + bias
// Gated:    y = f(gate) * up, f of kernels/basic/elementwise.h
// Clamped:  y = f(min(gate, L)) (min(max(up, -L), L) + 1)
#pragma once

#include <string.h>

#include "kernels/basic/elementwise.h"
#include "simd/simd.h"

namespace tamiz {
namespace TAMIZ_TARGET {

inline void add(const float* a, const float* b, int64_t count, float* y) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(y + i, load(a + i) + load(b + i));
  const int64_t rest = count - i;
  if (rest) store_partial(y + i, load_partial(a + i, rest) + load_partial(b + i, rest), rest);
}

/// The first n lanes at p, the others zero.
inline Vec load_lanes(const float* p, int64_t n) {
  return n == kLanes ? load(p) : load_partial(p, n);
}

/// Stores the first n lanes of v; returns them, the others zero.
inline Vec store_lanes(float* p, Vec v, int64_t n) {
  if (n != kLanes) {
    store_partial(p, v, n);
    return load_partial(p, n);
  }
  store(p, v);
  return v;
}

/// The sum of what `add_term(v, sum)` adds to a sum for every v = `take(i, n)`, the n elements from
/// i on; it adds nothing for zeros.
template <class Take, class Term>
float sum_of(int64_t count, Take take, Term add_term) {
  constexpr int kChains = 8;  // independent sums: hides latency, and rounds less
  Vec chain[kChains];
  for (Vec& c : chain) c = broadcast(0.0f);
  int64_t i = 0;
  for (; i + kChains * kLanes <= count; i += kChains * kLanes) {
    for (int j = 0; j < kChains; ++j) chain[j] = add_term(take(i + j * kLanes, kLanes), chain[j]);
  }
  for (; i + kLanes <= count; i += kLanes) chain[0] = add_term(take(i, kLanes), chain[0]);
  if (i < count) chain[1] = add_term(take(i, count - i), chain[1]);
  for (int j = 1; j < kChains; ++j) chain[0] = chain[0] + chain[j];
  return sum(chain[0]);
}

// What sums add for v.
constexpr auto add_value = [](Vec v, Vec total) { return total + v; };
constexpr auto add_square = [](Vec v, Vec total) { return multiply_add(v, v, total); };

inline float sum_of_squares(const float* x, int64_t count) {
  return sum_of(count, [x](int64_t i, int64_t n) { return load_lanes(x + i, n); }, add_square);
}

/// The run s = x + residual, kept in `to`; a null `to` keeps none, then s = x. Returns the sum of
/// what `add_term` adds for the elements of s.
template <class Term>
float make_run(const float* x, const float* residual, int64_t count, float* to, Term add_term) {
  const auto made = [=](int64_t i, int64_t n) {
    const Vec v = load_lanes(x + i, n);
    if (!to) return v;
    return store_lanes(to + i, residual ? v + load_lanes(residual + i, n) : v, n);
  };
  return sum_of(count, made, add_term);
}

/// Where a run is kept: in `sum`, else in y where there is a residual.
inline float* place_of_run(const float* residual, float* y, float* sum, int64_t at) {
  if (sum) return sum + at;
  return residual ? y + at : nullptr;
}

/// y = x factor weight + bias; a null bias is none.
inline void scale_by_weight(const float* x, float factor, const float* weight, const float* bias,
                            int64_t count, float* y) {
  const Vec f = broadcast(factor);
  const auto of = [&](int64_t i, int64_t n) {
    const Vec scaled = load_lanes(x + i, n) * f * load_lanes(weight + i, n);
    return bias ? scaled + load_lanes(bias + i, n) : scaled;
  };
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(y + i, of(i, kLanes));
  if (i < count) store_partial(y + i, of(i, count - i), count - i);
}

inline void rms_norm(const float* x, const float* residual, const float* weight, float epsilon,
                     int64_t rows, int64_t width, float* y, float* sum) {
  for (int64_t at = 0; at < rows * width; at += width) {
    float* const to = place_of_run(residual, y, sum, at);
    const float* const added = residual ? residual + at : nullptr;
    const float squares = make_run(x + at, added, width, to, add_square);
    const float factor = 1.0f / sqrtf(squares / static_cast<float>(width) + epsilon);
    scale_by_weight(to ? to : x + at, factor, weight, nullptr, width, y + at);
  }
}

inline void layer_norm(const float* x, const float* residual, const float* weight,
                       const float* bias, float epsilon, int64_t rows, int64_t width, float* y,
                       float* sum) {
  for (int64_t at = 0; at < rows * width; at += width) {
    float* const to = place_of_run(residual, y, sum, at);
    const float* const added = residual ? residual + at : nullptr;
    const float total = make_run(x + at, added, width, to, add_value);
    const Vec mean = broadcast(total / static_cast<float>(width));
    const float* const s = to ? to : x + at;
    const auto centred = [=](int64_t i, int64_t n) {
      return store_lanes(y + at + i, load_lanes(s + i, n) - mean, n);
    };
    const float squares = sum_of(width, centred, add_square);
    const float factor = 1.0f / sqrtf(squares / static_cast<float>(width) + epsilon);
    scale_by_weight(y + at, factor, weight, bias, width, y + at);
  }
}

inline Vec silu(Vec x) {
  const Vec one = broadcast(1.0f);
  return x / (one + exp(broadcast(0.0f) - x));
}

// -exp(a^2 / 2) erfc(a / sqrt(2)) / 2 near the middles of eight intervals of a + 1, two for each
// power of two, by polynomials of the distance to the middle, the highest power first. They are
// fitted so that their largest relative error is least; it is under 3e-7, and under 7e-8 for a < 3.
// The interval of a is bits 22 to 24 of a + 1.
constexpr float kErfcMiddles[8] = {1.5f, 2.5f, 4.0f, 6.0f, 9.0f, 13.0f, 0.25f, 0.75f};
constexpr float kErfcFactors[7][8] = {
    {-3.78175464e-04f, -6.36005061e-05f, -7.49151377e-06f, -7.73092495e-07f, -6.53917311e-08f,
     -5.63651437e-09f, -5.63026033e-03f, -1.75889512e-03f},
    {1.31174142e-03f, 2.63865717e-04f, 3.99151832e-05f, 5.41419604e-06f, 6.37120991e-07f,
     7.62415056e-08f, 1.52120721e-02f, 5.24373772e-03f},
    {-4.10970626e-03f, -1.01748831e-03f, -1.92589039e-04f, -3.58311663e-05f, -5.67913958e-06f,
     -9.85951829e-07f, -3.72527093e-02f, -1.43598858e-02f},
    {1.24912914e-02f, 3.83032160e-03f, 9.57518874e-04f, 2.41089001e-04f, 5.40550391e-05f,
     1.31837505e-05f, 8.42975080e-02f, 3.66824269e-02f},
    {-3.51868384e-02f, -1.36482250e-02f, -4.60589863e-03f, -1.59047486e-03f, -5.10085665e-04f,
     -1.75409674e-04f, -1.70086741e-01f, -8.49532485e-02f},
    {9.02714580e-02f, 4.56139781e-02f, 2.12998651e-02f, 1.02664065e-02f, 4.75322735e-03f,
     2.31989496e-03f, 2.95434296e-01f, 1.73767954e-01f},
    {-2.05780670e-01f, -1.41331330e-01f, -9.44106430e-02f, -6.47793114e-02f, -4.37987894e-02f,
     -3.05094142e-02f, -4.14032102e-01f, -3.00232470e-01f},
};

/// max(x, 0) + a exp(-a^2 / 2) r(a), a = |x|, r(a) = -exp(a^2 / 2) erfc(a / sqrt(2)) / 2: neither
/// side of 0 loses digits, and nothing is divided.
inline Vec gelu(Vec x) {
  const Vec a = min(broadcast(14.5f), abs(x));  // exp(-14.5^2 / 2) is 0 in float32
  const Vec near = a * exp2(broadcast(-0.721347520f) * a * a);
  const Ints interval = ints_right<22>(float_bits(a + broadcast(1.0f)));
  const Vec t = a - pick_of_eight(kErfcMiddles, interval);
  Vec r = pick_of_eight(kErfcFactors[0], interval);
  for (int i = 1; i < 7; ++i) {
    r = multiply_add(r, t, pick_of_eight(kErfcFactors[i], interval));
  }
  return multiply_add(near, r, max(broadcast(0.0f), x));
}

/// x / 2 (1 + tanh(u)), since 1 + tanh(u) = 2 / (1 + exp(-2u)).
inline Vec gelu_tanh(Vec x) {
  const Vec one = broadcast(1.0f);
  const Vec cubic = multiply_add(broadcast(0.044715f) * x, x * x, x);
  return x / (one + exp(broadcast(-1.5957691216f) * cubic));
}

inline Vec quick_gelu(Vec x) { return x / (broadcast(1.0f) + exp(broadcast(-1.702f) * x)); }

inline Vec relu(Vec x) { return max(broadcast(0.0f), x); }

inline Vec relu2(Vec x) { return relu(x) * relu(x); }

template <Vec (*kActivation)(Vec)>
void clamped(const float* gate, const float* up, float limit, int64_t count, float* y) {
  const Vec one = broadcast(1.0f), most = broadcast(limit), least = broadcast(-limit);
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t rest = count - i;
    const bool whole = rest >= kLanes;
    const Vec g = min(most, whole ? load(gate + i) : load_partial(gate + i, rest));
    const Vec u = max(least, min(most, whole ? load(up + i) : load_partial(up + i, rest)));
    const Vec product = kActivation(g) * (u + one);
    whole ? store(y + i, product) : store_partial(y + i, product, rest);
  }
}

template <Vec (*kActivation)(Vec)>
void gated(const float* gate, const float* up, float limit, int64_t count, float* y) {
  if (limit > 0) return clamped<kActivation>(gate, up, limit, count, y);
  const Vec one = broadcast(1.0f);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    store(y + i, kActivation(load(gate + i)) * (up ? load(up + i) : one));
  }
  const int64_t rest = count - i;
  if (rest) {
    const Vec activation = kActivation(load_partial(gate + i, rest));
    store_partial(y + i, activation * (up ? load_partial(up + i, rest) : one), rest);
  }
}

inline Vec xielu_of(Vec x, const Xielu& of) {
  const Vec one = broadcast(1.0f), zero = broadcast(0.0f);
  const Vec bent = exp(min(broadcast(of.epsilon), x)) - one - x;
  const Vec straight = broadcast(of.beta) * x;
  const Vec below = multiply_add(broadcast(of.alpha_n), bent, straight);
  return select_le(x, zero, below, multiply_add(broadcast(of.alpha_p) * x, x, straight));
}

inline void xielu(const float* x, const float* up, const Xielu& of, int64_t count, float* y) {
  const Vec one = broadcast(1.0f);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    store(y + i, xielu_of(load(x + i), of) * (up ? load(up + i) : one));
  }
  const int64_t rest = count - i;
  if (rest) {
    const Vec activation = xielu_of(load_partial(x + i, rest), of);
    store_partial(y + i, activation * (up ? load_partial(up + i, rest) : one), rest);
  }
}

constexpr ElementwiseKernels elementwise_kernels = {
    add,
    rms_norm,
    layer_norm,
    xielu,
    {gated<silu>, gated<gelu>, gated<gelu_tanh>, gated<quick_gelu>, gated<relu>, gated<relu2>}};

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
