// W0, the part of a weight that takes almost no bytes:
//
//   none           W0 = 0
//   xor-circulant  W0[o, i] = r[o] c[o ^ i]: W0 x = r * H (s * H x), s = H c / L, where * is
//                  element by element
//   hadamard       W0 = diag(r) Q_depth ... Q_1, Q_j = H D_j P_j / sqrt(L); of its result the first
//                  n
//   seedlm         of every 8 inputs a pseudo-random matrix times 3 coefficients:
//   kernels/deltas/seedlm.h
//
// H is the Walsh-Hadamard matrix of L, the least power of two not under n and k; x is padded with
// zeros. D_j are signs and P_j permutations v[i] -> v[(a i + b) mod L], a odd, from the hash of
// kernels/deltas/deltas.h: with z(c) its output number c, a = z(2j) | 1, b = z(2j + 1), and the
// sign of i is negative where bit i % 64 of z((j + 1) 2^32 + i / 64) is set.
#pragma once

#include <cmath>
#include <string>

#include "base/attributes.h"
#include "base/error.h"
#include "base/shapes.h"
#include "base/tensor.h"
#include "kernels/deltas/deltas.h"
#include "kernels/deltas/seedlm.h"
#include "ops/products/packed_weight.h"

namespace tamiz {

class SeededBase {
 public:
  explicit SeededBase(const Attributes& attributes)
      : n_(PackedWeight::positive(attributes, "n")),
        k_(PackedWeight::positive(attributes, "k")),
        bits_(attributes.ints.at("base_bits")),
        depth_(PackedWeight::positive(attributes, "depth")),
        seed_(static_cast<uint64_t>(attributes.ints.at("seed"))),
        name_(attributes.strings.at("base")) {
    if (name_ != "none" && name_ != "seedlm" && !transforms()) {
      throw Error("attribute 'base' is '" + name_ +
                  "', expected none, xor-circulant, hadamard or seedlm");
    }
    if (bits_ != 3 && bits_ != 4) {
      throw Error("attribute 'base_bits' is " + std::to_string(bits_) + ", expected 3 or 4");
    }
    constexpr int64_t kMostDepth = 16;
    if (depth_ > kMostDepth) {
      throw Error("attribute 'depth' is " + std::to_string(depth_) + ", expected 1 to " +
                  std::to_string(kMostDepth));
    }
    while (size_ < n_ || size_ < k_) size_ *= 2;
  }

  /// Whether W0 x is a transform of a whole row of x, which `add` makes.
  bool transforms() const { return name_ == "xor-circulant" || name_ == "hadamard"; }

  /// L
  int64_t size() const { return size_; }

  /// Throws Error where r, s or the words of SeedLM are missing, not wanted or of another size.
  void check(const Tensor& row_scale, const Tensor& spectrum, const Tensor& seedlm) const {
    check_presence("row_scale", row_scale, transforms());
    check_presence("seedlm", seedlm, name_ == "seedlm");
    check_presence("spectrum", spectrum, name_ == "xor-circulant");
    if (row_scale) expect_shape("row_scale", row_scale, Shape{1, {n_}}, "[n]");
    if (seedlm) {
      const Shape shape = {2, {tile_count(n_), tile_bytes()}};
      expect_shape("seedlm", seedlm, shape, "tiles and tile bytes of n, k and base_bits");
    }
    if (spectrum) {
      expect_shape("spectrum", spectrum, Shape{1, {size_}}, "the power of two not under n and k");
    }
  }

  /// Of a weight of SeedLM.
  int bits() const { return static_cast<int>(bits_); }
  int64_t tile_bytes() const { return group_count(k_) * seedlm_group_bytes(bits()); }

  /// y[o] += (W0 x)[o] for one row, of a base that transforms; `v` holds x padded with zeros to L,
  /// `other` is room for as many.
  void add(const DeltaKernels& kernels, float* v, float* other, const float* row_scale,
           const float* spectrum, float* y) const {
    if (spectrum) {
      kernels.hadamard(v, size_);
      for (int64_t i = 0; i < size_; ++i) v[i] *= spectrum[i];
      kernels.hadamard(v, size_);
    } else {
      for (int64_t j = 0; j < depth_; ++j, std::swap(v, other)) {
        shuffle(static_cast<uint64_t>(j), v, other);
        kernels.hadamard(other, size_);
      }
    }
    for (int64_t o = 0; o < n_; ++o) y[o] += row_scale[o] * v[o];
  }

 private:
  void check_presence(const char* what, const Tensor& tensor, bool wanted) const {
    if (static_cast<bool>(tensor) == wanted) return;
    throw Error("input " + std::string(what) + " is " + (wanted ? "missing" : "there") +
                ", the base is " + name_);
  }

  uint64_t hash(uint64_t counter) const {
    uint64_t z = seed_ + (counter + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }

  /// to = D_j P_j from / sqrt(L)
  void shuffle(uint64_t j, const float* from, float* to) const {
    const uint64_t step = hash(2 * j) | 1;
    const uint64_t first = hash(2 * j + 1);
    const uint64_t mask = static_cast<uint64_t>(size_ - 1);
    const float scale = 1.0f / std::sqrt(static_cast<float>(size_));
    uint64_t signs = 0;
    for (uint64_t i = 0; i <= mask; ++i) {
      if (i % 64 == 0) signs = hash((j + 1) << 32 | i / 64);
      const float value = from[(step * i + first) & mask] * scale;
      to[i] = signs >> i % 64 & 1 ? -value : value;
    }
  }

  int64_t n_, k_, bits_, depth_;
  uint64_t seed_;
  std::string name_;
  int64_t size_ = 1;
};

}  // namespace tamiz
