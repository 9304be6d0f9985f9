// The best lattice for the weights of a group, for 16 outputs side by side.
//
//   minimise over scale and minimum    sum_k m_k (w_k - scale value(q_k) - minimum)^2
//
// with q_k the quant that is nearest. Candidates are narrower and wider lattices; with the quants
// of a candidate fixed, the best scale and minimum are those of a linear regression, which is
// closed. Every lane computes alone, so that the result does not depend on the width of vectors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace tamiz::lattice {

constexpr int kLanes = 16;
using Lanes = float __attribute__((vector_size(4 * kLanes)));

inline Lanes filled(float x) { return x - Lanes{}; }
inline Lanes least(const Lanes& a, const Lanes& b) { return a < b ? a : b; }
inline Lanes greatest(const Lanes& a, const Lanes& b) { return a > b ? a : b; }
inline Lanes clamped(const Lanes& x, float low, float high) {
  return least(greatest(x, filled(low)), filled(high));
}

/// Nearest integer, ties to even, of numbers below 2^22.
inline Lanes rounded(const Lanes& x) {
  constexpr float kMagic = 12582912.0f;
  return (x + kMagic) - kMagic;
}

/// 1 / x, and 0 for 0.
inline Lanes inverse(const Lanes& x) {
  const Lanes nonzero = x != 0.0f ? x : filled(1.0f);
  return x != 0.0f ? 1.0f / nonzero : Lanes{};
}

/// What a quant stands for before scale and minimum: consecutive integers, or a codebook.
class Levels {
 public:
  /// `values` rise; `linear` where they are consecutive integers.
  Levels(std::vector<float> values, bool linear) : values_(std::move(values)), linear_(linear) {
    for (size_t i = 1; i < values_.size(); ++i) {
      middles_.push_back((values_[i - 1] + values_[i]) / 2);
    }
  }

  float lowest() const { return values_.front(); }
  float highest() const { return values_.back(); }
  /// Steps between the outermost levels.
  int steps() const { return static_cast<int>(values_.size()) - 1; }

  /// The level nearest to each number.
  Lanes nearest(const Lanes& y) const {
    if (linear_) return rounded(clamped(y, lowest(), highest()));
    Lanes value = filled(lowest());
    for (size_t i = 0; i < middles_.size(); ++i) {
      value += y > middles_[i] ? filled(values_[i + 1] - values_[i]) : Lanes{};
    }
    return value;
  }

  /// The number of a level, from 0.
  Lanes index(const Lanes& value) const {
    if (linear_) return value - lowest();
    Lanes index = {};
    for (const float middle : middles_) index += value > middle ? filled(1.0f) : Lanes{};
    return index;
  }

 private:
  std::vector<float> values_, middles_;
  bool linear_;
};

/// Weights of one group: x[k] of 16 outputs, and how much an error of input k costs.
struct Group {
  const Lanes* x;
  const float* cost;
  int n;
};

struct Lattice {
  Lanes scale, minimum;
};

/// Sums over a group with the quants of one lattice.
struct Sums {
  Lanes value = {}, square = {}, product = {};  // of c v, c v^2 and c v x

  Sums(const Levels& levels, const Group& group, const Lanes& scale, const Lanes& minimum) {
    const Lanes per_scale = inverse(scale);
    for (int k = 0; k < group.n; ++k) {
      const Lanes v = levels.nearest((group.x[k] - minimum) * per_scale);
      const Lanes cv = group.cost[k] * v;
      value += cv;
      square += cv * v;
      product += cv * group.x[k];
    }
  }
};

inline Lanes error(const Levels& levels, const Group& group, const Lattice& at) {
  const Lanes per_scale = inverse(at.scale);
  Lanes sum = {};
  for (int k = 0; k < group.n; ++k) {
    const Lanes y = (group.x[k] - at.minimum) * per_scale;
    const Lanes left = group.x[k] - at.scale * levels.nearest(y) - at.minimum;
    sum += group.cost[k] * left * left;
  }
  return sum;
}

/// A search that keeps the best lattice so far.
class Search {
 public:
  Search(const Levels& levels, const Group& group, bool has_minimum, bool minimum_below_zero)
      : levels_(levels), group_(group), has_minimum_(has_minimum), below_zero_(minimum_below_zero) {
    low_ = high_ = group.x[0];
    for (int k = 0; k < group.n; ++k) {
      low_ = least(low_, group.x[k]);
      high_ = greatest(high_, group.x[k]);
      cost_ += filled(group.cost[k]);
      sum_ += group.cost[k] * group.x[k];
      square_ += group.cost[k] * group.x[k] * group.x[k];
    }
    if (below_zero_) low_ = least(low_, Lanes{});
  }

  /// Without a search: from the extremes alone.
  Lattice nearest() const {
    if (has_minimum_) return {(high_ - low_) / static_cast<float>(levels_.steps()), low_};
    return {peak() / end(), Lanes{}};
  }

  Lattice best() {
    best_ = nearest();
    error_ = error(levels_, group_, best_);
    if (has_minimum_) {
      try_minima();
    } else {
      try_scales();
    }
    for (int i = 0; i < 3; ++i) improve(best_.scale, best_.minimum);
    return best_;
  }

 private:
  static constexpr int kWidths = 14;

  /// The weight of largest magnitude, with its sign.
  Lanes peak() const { return high_ > -low_ ? high_ : low_; }
  /// The level of largest magnitude.
  float end() const {
    return -levels_.lowest() >= levels_.highest() ? levels_.lowest() : levels_.highest();
  }

  /// Width of candidate `i` of `kWidths`: fewer levels gain more from cutting extremes.
  float width(int i) const {
    const float narrowest = 1.0f - 1.2f / static_cast<float>(levels_.steps() + 1);
    return 1.08f - (1.08f - narrowest) * static_cast<float>(i) / (kWidths - 1);
  }

  void try_minima() {
    const Lanes range = high_ - low_;
    const float steps = static_cast<float>(levels_.steps());
    for (int i = 0; i < kWidths; ++i) {
      const Lanes scale = range * (width(i) / steps);
      const Lanes cut = range * (1.0f - width(i));
      improve(scale, low_);
      improve(scale, low_ + cut * 0.5f);
      improve(scale, low_ + cut);
    }
    // Weights of a coarser format may leave the upper levels unused.
    for (int used = levels_.steps() - 1; used > 0 && 2 * used >= levels_.steps(); --used) {
      improve(range / static_cast<float>(used), low_);
    }
  }

  void try_scales() {
    const float first = end(), other = levels_.lowest() + levels_.highest() - first;
    for (int i = 0; i < kWidths; ++i) {
      improve(peak() * (width(i) / first), Lanes{});
      if (other != 0.0f) improve(peak() * (width(i) / other), Lanes{});
    }
  }

  /// Regression on the quants of a lattice; kept where its error is smaller.
  void improve(const Lanes& scale, const Lanes& minimum) {
    const Sums sums(levels_, group_, scale, minimum);
    Lanes fitted = sums.product * inverse(sums.square), offset = {};
    if (has_minimum_) {
      const Lanes spread = cost_ * sums.square - sums.value * sums.value;
      const auto flat = spread <= 1e-6f * cost_ * sums.square;
      const Lanes per_spread = inverse(flat ? Lanes{} : spread);
      const Lanes slope = (cost_ * sums.product - sum_ * sums.value) * per_spread;
      offset = (sums.square * sum_ - sums.value * sums.product) * per_spread;
      const auto alone = flat || (below_zero_ ? offset > 0.0f : offset != offset);
      fitted = alone ? fitted : slope;
      offset = alone ? Lanes{} : offset;
    }
    const Lanes left = square_ - fitted * sums.product - offset * sum_;
    const auto better = left < error_;
    best_.scale = better ? fitted : best_.scale;
    best_.minimum = better ? offset : best_.minimum;
    error_ = better ? left : error_;
  }

  const Levels& levels_;
  const Group& group_;
  const bool has_minimum_, below_zero_;
  Lanes low_ = {}, high_ = {}, cost_ = {}, sum_ = {}, square_ = {};
  Lattice best_ = {};
  Lanes error_ = {};
};

}  // namespace tamiz::lattice
