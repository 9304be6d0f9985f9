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

/// The sum over x of what `add_term(v, sum)` adds to a sum; it adds nothing for zeros.
template <class Term>
float sum_of(const float* x, int64_t count, Term add_term) {
  constexpr int kChains = 8;  // independent sums: hides latency, and rounds less
  Vec chain[kChains];
  for (Vec& c : chain) c = broadcast(0.0f);
  int64_t i = 0;
  for (; i + kChains * kLanes <= count; i += kChains * kLanes) {
    for (int j = 0; j < kChains; ++j) chain[j] = add_term(load(x + i + j * kLanes), chain[j]);
  }
  for (; i + kLanes <= count; i += kLanes) chain[0] = add_term(load(x + i), chain[0]);
  if (i < count) chain[1] = add_term(load_partial(x + i, count - i), chain[1]);
  for (int j = 1; j < kChains; ++j) chain[0] = chain[0] + chain[j];
  return sum(chain[0]);
}

inline float sum_of_squares(const float* x, int64_t count) {
  return sum_of(x, count, [](Vec v, Vec total) { return multiply_add(v, v, total); });
}

/// y = x - c
inline void subtract(const float* x, float c, int64_t count, float* y) {
  const Vec minus = broadcast(c);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(y + i, load(x + i) - minus);
  const int64_t rest = count - i;
  if (rest) store_partial(y + i, load_partial(x + i, rest) - minus, rest);
}

inline void scale_by_weight(const float* x, float factor, const float* weight, int64_t count,
                            float* y) {
  const Vec f = broadcast(factor);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(y + i, load(x + i) * f * load(weight + i));
  const int64_t rest = count - i;
  if (rest) {
    store_partial(y + i, load_partial(x + i, rest) * f * load_partial(weight + i, rest), rest);
  }
}

/// The run s = x + residual at `at`: kept in `sum`, else in y; x itself where there is no residual.
inline const float* add_residual(const float* x, const float* residual, int64_t at, int64_t width,
                                 float* y, float* sum) {
  if (residual) {
    float* to = (sum ? sum : y) + at;
    add(x + at, residual + at, width, to);
    return to;
  }
  if (sum) memcpy(sum + at, x + at, sizeof(float) * width);
  return x + at;
}

inline void rms_norm(const float* x, const float* residual, const float* weight, float epsilon,
                     int64_t rows, int64_t width, float* y, float* sum) {
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t at = row * width;
    const float* s = add_residual(x, residual, at, width, y, sum);
    const float mean = sum_of_squares(s, width) / static_cast<float>(width);
    scale_by_weight(s, 1.0f / sqrtf(mean + epsilon), weight, width, y + at);
  }
}

inline void layer_norm(const float* x, const float* residual, const float* weight,
                       const float* bias, float epsilon, int64_t rows, int64_t width, float* y,
                       float* sum) {
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t at = row * width;
    const float* s = add_residual(x, residual, at, width, y, sum);
    const float total = sum_of(s, width, [](Vec v, Vec so_far) { return so_far + v; });
    subtract(s, total / static_cast<float>(width), width, y + at);
    const float variance = sum_of_squares(y + at, width) / static_cast<float>(width);
    scale_by_weight(y + at, 1.0f / sqrtf(variance + epsilon), weight, width, y + at);
    if (bias) add(y + at, bias, width, y + at);
  }
}

inline Vec silu(Vec x) {
  const Vec one = broadcast(1.0f);
  return x / (one + exp(broadcast(0.0f) - x));
}

/// x / 2 erfc(-x / sqrt(2)). erfc(z) for z >= 0 is t exp(-z^2 + p(t)), t = 1 / (1 + z / 2), with a
/// relative error under 1.2e-7 (Press et al., Numerical Recipes in C, 1992, section 6.2).
inline Vec gelu(Vec x) {
  const Vec zero = broadcast(0.0f);
  const Vec one = broadcast(1.0f);
  const Vec z = abs(x) * broadcast(0.70710678f);
  const Vec t = one / multiply_add(broadcast(0.5f), z, one);
  constexpr float kFactors[] = {-0.82215223f, 1.48851587f, -1.13520398f, 0.27886807f, -0.18628806f,
                                0.09678418f,  0.37409196f, 1.00002368f,  -1.26551223f};
  Vec p = broadcast(0.17087277f);
  for (float factor : kFactors) p = multiply_add(p, t, broadcast(factor));
  const Vec far = t * exp(p - z * z);
  return broadcast(0.5f) * x * select_le(x, zero, far, broadcast(2.0f) - far);
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

constexpr ElementwiseKernels elementwise_kernels = {
    add,
    rms_norm,
    layer_norm,
    {gated<silu>, gated<gelu>, gated<gelu_tanh>, gated<quick_gelu>, gated<relu>, gated<relu2>}};

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
