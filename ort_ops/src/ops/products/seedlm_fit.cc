// For every group of 32 inputs: a search for each of its blocks, then the choice for each output.
//
// With V = diag(root_m) U = Q R of a seed and v = root_m * w, the best coefficients of any size
// leave |v|^2 - |Q^T v|^2; coefficients t with the scale s leave |Q^T v - s R t|^2 more, which is
// minimised from the last coefficient to the first (Babai's nearest plane).
#include "ops/products/seedlm_fit.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/kernels.h"

namespace tamiz {
namespace {

constexpr int kRank = kSeedRank;
constexpr int kBlock = kSeedBlock;
constexpr int kClasses = kSeedClasses;

/// Scales that are tried: the one that holds the largest coefficient, times 2^(i / 5 - 2.2).
constexpr int kScales = 14;
/// And then, so often, the best one for the coefficients of the best so far.
constexpr int kRefinements = 2;

struct Basis {
  double q[kRank][kBlock];
  double r[kRank][kRank];  // V_p = sum_j q_j r[j][p]
};

/// The bits of seed `number` in a word.
uint32_t seed_bits(uint32_t number, int bits) {
  if (bits == 4) return number << 16;
  return (number & 255) << 16 | (number >> 8 & 1) << 3 | (number >> 9 & 1) << 11 |
         (number >> 10 & 1) << 15;
}

/// Gram and Schmidt's; a column that depends on those before it becomes 0.
Basis basis(uint32_t seed, const float* root_m) {
  int8_t u[kRank][kBlock];
  seedlm_columns(seed, u);
  Basis made = {};
  for (int p = 0; p < kRank; ++p) {
    double v[kBlock];
    double before = 0;
    for (int i = 0; i < kBlock; ++i) {
      v[i] = static_cast<double>(root_m[i]) * u[p][i];
      before += v[i] * v[i];
    }
    for (int j = 0; j < p; ++j) {
      double dot = 0;
      for (int i = 0; i < kBlock; ++i) dot += made.q[j][i] * v[i];
      for (int i = 0; i < kBlock; ++i) v[i] -= dot * made.q[j][i];
      made.r[j][p] = dot;
    }
    double square = 0;
    for (const double x : v) square += x * x;
    if (square <= 1e-12 * before) continue;
    made.r[p][p] = std::sqrt(square);
    for (int i = 0; i < kBlock; ++i) made.q[p][i] = v[i] / made.r[p][p];
  }
  return made;
}

/// Columns of 16 seeds, side by side so that the compiler makes vectors of them.
using Columns = float[kRank][kBlock][kClasses];

/// V -> Q, Gram and Schmidt's as above, in single precision: good enough to search with.
void orthonormalise(Columns& v) {
  float square[kClasses], factor[kClasses];
  for (int p = 0; p < kRank; ++p) {
    for (int l = 0; l < kClasses; ++l) square[l] = 0;
    for (int i = 0; i < kBlock; ++i) {
      for (int l = 0; l < kClasses; ++l) square[l] += v[p][i][l] * v[p][i][l];
    }
    float least[kClasses];
    for (int l = 0; l < kClasses; ++l) least[l] = 1e-5f * square[l];
    for (int j = 0; j < p; ++j) {
      for (int l = 0; l < kClasses; ++l) factor[l] = 0;
      for (int i = 0; i < kBlock; ++i) {
        for (int l = 0; l < kClasses; ++l) factor[l] += v[j][i][l] * v[p][i][l];
      }
      for (int i = 0; i < kBlock; ++i) {
        for (int l = 0; l < kClasses; ++l) v[p][i][l] -= factor[l] * v[j][i][l];
      }
    }
    for (int l = 0; l < kClasses; ++l) square[l] = 0;
    for (int i = 0; i < kBlock; ++i) {
      for (int l = 0; l < kClasses; ++l) square[l] += v[p][i][l] * v[p][i][l];
    }
    for (int l = 0; l < kClasses; ++l) {
      factor[l] = square[l] > least[l] ? 1.0f / std::sqrt(square[l]) : 0.0f;
    }
    for (int i = 0; i < kBlock; ++i) {
      for (int l = 0; l < kClasses; ++l) v[p][i][l] *= factor[l];
    }
  }
}

/// Q of every seed as `SeedSearch` reads it.
void make_bases(const float* root_m, int bits, std::vector<int16_t>& bases) {
  constexpr float kOne = 1 << 14;
  const uint32_t count = 1u << seedlm_seed_bits(bits);
  bases.resize(static_cast<size_t>(count) * kRank * kBlock);
  int16_t* to = bases.data();
  for (uint32_t seed = 0; seed < count; seed += kClasses) {
    Columns v;
    for (int l = 0; l < kClasses; ++l) {
      int8_t u[kRank][kBlock];
      seedlm_columns(seed_bits(seed + l, bits), u);
      for (int p = 0; p < kRank; ++p) {
        for (int i = 0; i < kBlock; ++i) v[p][i][l] = root_m[i] * u[p][i];
      }
    }
    orthonormalise(v);
    for (int p = 0; p < kRank; ++p) {
      for (int i = 0; i < kBlock; i += 2, to += 2 * kClasses) {
        for (int l = 0; l < kClasses; ++l) {
          to[2 * l] = static_cast<int16_t>(v[p][i][l] * kOne);
          to[2 * l + 1] = static_cast<int16_t>(v[p][i + 1][l] * kOne);
        }
      }
    }
  }
}

/// One seed of a block, and Q^T v.
struct Candidate {
  uint32_t seed;
  Basis basis;
  double y[kRank];
  double rest;  // |v|^2 - |y|^2
};

struct Choice {
  double error;
  uint32_t word;       // without the scale
  double dot, square;  // <Q^T v, R t> and |R t|^2, whose ratio is the best scale for t
};

/// The same of a group's blocks.
struct GroupChoice {
  double error = std::numeric_limits<double>::infinity();
  double dot = 0, square = 0;
  uint32_t words[kSeedBlocks] = {};
};

/// Rounds the coefficients of one candidate, given the scale.
Choice round_down(const Candidate& c, double scale, int bits) {
  constexpr int kShifts[kRank] = {0, 8, 12};
  const double lowest = -seedlm_offset(bits), highest = -lowest - 1;
  double t[kRank] = {};
  Choice made = {c.rest, c.seed, 0, 0};
  for (int p = kRank - 1; p >= 0; --p) {
    double along = 0;  // (R t)_p
    for (int j = p + 1; j < kRank; ++j) along += c.basis.r[p][j] * t[j];
    const double step = scale * c.basis.r[p][p];
    if (step > 0)
      t[p] = std::clamp(std::nearbyint((c.y[p] - scale * along) / step), lowest, highest);
    along += c.basis.r[p][p] * t[p];
    made.error += (c.y[p] - scale * along) * (c.y[p] - scale * along);
    made.dot += c.y[p] * along;
    made.square += along * along;
    made.word |= static_cast<uint32_t>(static_cast<int>(t[p]) + seedlm_offset(bits)) << kShifts[p];
  }
  return made;
}

/// IEEE half precision of a number from 0 to 65504, rounded to nearest.
uint16_t to_half(double x) {
  int exponent = 0;
  std::frexp(x, &exponent);
  exponent = std::max(exponent, -13);  // of the smallest normal number
  const double ulps = std::nearbyint(std::ldexp(x, 11 - exponent));
  return static_cast<uint16_t>(ulps + 1024.0 * (exponent + 13));
}

double from_half(uint16_t half) {
  uint8_t bytes[2];
  std::memcpy(bytes, &half, sizeof(half));
  return half_to_float(bytes);
}

class Fitter {
 public:
  Fitter(const float* weight, const float* root_m, int64_t n, int64_t k, int bits,
         const SeedlmKernels& kernels)
      : weight_(weight), root_m_(root_m), n_(n), k_(k), bits_(bits), kernels_(kernels) {}

  std::vector<uint8_t> run() {
    const int64_t groups = group_count(k_);
    packed_.assign(tile_count(n_) * groups * seedlm_group_bytes(bits_), 0);
    for (int64_t g = 0; g < groups; ++g) {
      for (int b = 0; b < kSeedBlocks; ++b) search(g * kGroup + b * kBlock, b);
      for (int64_t o = 0; o < n_; ++o) choose(g, o);
    }
    return std::move(packed_);
  }

 private:
  /// v of an output's block, 0 past the end.
  void target(int64_t o, int64_t input, double (&v)[kBlock]) const {
    for (int i = 0; i < kBlock; ++i) {
      const bool there = input + i < k_;
      v[i] = there ? static_cast<double>(weight_[o * k_ + input + i]) * root_m_[input + i] : 0.0;
    }
  }

  void roots(int64_t input, float (&root_m)[kBlock]) const {
    for (int i = 0; i < kBlock; ++i) root_m[i] = input + i < k_ ? root_m_[input + i] : 0.0f;
  }

  /// The best seeds of block `b` of a group, for every output.
  void search(int64_t input, int b) {
    constexpr double kLargest = (1 << 13) - 1;
    constexpr int64_t kChunk = 1024;  // of seeds, whose bases fit the second cache
    float root_m[kBlock];
    roots(input, root_m);
    if (bases_.empty() || !std::equal(root_m, root_m + kBlock, bases_of_)) {
      make_bases(root_m, bits_, bases_);
      std::copy_n(root_m, kBlock, bases_of_);
    }
    targets_.resize(n_ * kBlock);
    for (int64_t o = 0; o < n_; ++o) {
      double v[kBlock];
      target(o, input, v);
      double largest = 0;
      for (const double x : v) largest = std::max(largest, std::abs(x));
      for (int i = 0; i < kBlock; ++i) {
        targets_[o * kBlock + i] =
            static_cast<int16_t>(largest > 0 ? std::lrint(v[i] / largest * kLargest) : 0);
      }
    }
    energies_.assign(n_ * kClasses, -1.0f);
    numbers_[b].assign(n_ * kClasses, 0.0f);
    const int64_t seeds = int64_t{1} << seedlm_seed_bits(bits_);
    for (int64_t first = 0; first < seeds; first += kChunk) {
      kernels_.search({bases_.data() + first * kRank * kBlock, first, kChunk, targets_.data(), n_,
                       energies_.data(), numbers_[b].data()});
    }
  }

  /// Scale, seeds and coefficients of one output and group.
  void choose(int64_t g, int64_t o) {
    for (int b = 0; b < kSeedBlocks; ++b) find_candidates(g * kGroup + b * kBlock, o, b);
    const double first = largest_coefficient() / (seedlm_offset(bits_) - 0.5);
    GroupChoice best;
    for (int i = 0; i < kScales; ++i) try_scale(first * std::exp2(i / 5.0 - 2.2), best);
    for (int i = 0; i < kRefinements && best.dot > 0; ++i) {
      try_scale(best.dot / best.square, best);
    }
    store(g, o, best.words);
  }

  void try_scale(double scale, GroupChoice& best) const {
    if (scale > 65504) throw Error("a group needs a scale above 65504, fp16's largest");
    const uint16_t half = to_half(scale);
    GroupChoice made;
    made.error = 0;
    for (int b = 0; b < kSeedBlocks; ++b) {
      const Choice choice = best_choice(b, from_half(half));
      made.error += choice.error;
      made.dot += choice.dot;
      made.square += choice.square;
      made.words[b] = choice.word | static_cast<uint32_t>(half >> 4 * b & 15) << 4;
    }
    if (made.error < best.error) best = made;
  }

  void find_candidates(int64_t input, int64_t o, int b) {
    double v[kBlock];
    target(o, input, v);
    float root_m[kBlock];
    roots(input, root_m);
    double square = 0;
    for (const double x : v) square += x * x;
    for (int c = 0; c < kClasses; ++c) {
      Candidate& candidate = candidates_[b][c];
      const auto number = static_cast<uint32_t>(numbers_[b][o * kClasses + c]) + c;
      candidate.seed = seed_bits(number, bits_);
      candidate.basis = basis(candidate.seed, root_m);
      candidate.rest = square;
      for (int p = 0; p < kRank; ++p) {
        double y = 0;
        for (int i = 0; i < kBlock; ++i) y += candidate.basis.q[p][i] * v[i];
        candidate.y[p] = y;
        candidate.rest -= y * y;
      }
    }
    // So that `best_choice` can leave most of them out.
    std::sort(candidates_[b], candidates_[b] + kClasses,
              [](const Candidate& l, const Candidate& r) { return l.rest < r.rest; });
  }

  /// Of the blocks' best candidates, were coefficients of any size.
  double largest_coefficient() const {
    double largest = 0;
    for (const auto& block : candidates_) {
      const Candidate& best = block[0];
      double t[kRank] = {};
      for (int p = kRank - 1; p >= 0; --p) {
        double left = best.y[p];
        for (int j = p + 1; j < kRank; ++j) left -= best.basis.r[p][j] * t[j];
        if (best.basis.r[p][p] > 0) t[p] = left / best.basis.r[p][p];
        largest = std::max(largest, std::abs(t[p]));
      }
    }
    return largest;
  }

  Choice best_choice(int b, double scale) const {
    Choice best = {std::numeric_limits<double>::infinity(), 0, 0, 0};
    for (const Candidate& candidate : candidates_[b]) {
      if (candidate.rest >= best.error) break;
      const Choice made = round_down(candidate, scale, bits_);
      if (made.error < best.error) best = made;
    }
    return best;
  }

  void store(int64_t g, int64_t o, const uint32_t (&words)[kSeedBlocks]) {
    const int64_t at = o / kTile * group_count(k_) + g;
    uint8_t* const group = packed_.data() + at * seedlm_group_bytes(bits_);
    for (int b = 0; b < kSeedBlocks; ++b) {
      uint8_t* const block = group + b * kTile * bits_;
      const int64_t lane = o % kTile;
      if (bits_ == 4) {
        std::memcpy(block + 4 * lane, &words[b], 4);
      } else {
        std::memcpy(block + 2 * lane, &words[b], 2);
        block[2 * kTile + lane] = static_cast<uint8_t>(words[b] >> 16);
      }
    }
  }

  const float* const weight_;
  const float* const root_m_;
  const int64_t n_, k_;
  const int bits_;
  const SeedlmKernels& kernels_;
  std::vector<uint8_t> packed_;
  std::vector<int16_t> bases_, targets_;
  float bases_of_[kBlock] = {};  // root_m that `bases_` were made with
  std::vector<float> energies_, numbers_[kSeedBlocks];
  Candidate candidates_[kSeedBlocks][kClasses];
};

}  // namespace

std::vector<uint8_t> fit_seedlm(const float* weight, const float* root_m, int64_t n, int64_t k,
                                int bits, const Kernels& kernels) {
  return Fitter(weight, root_m, n, k, bits, kernels.seedlm).run();
}

}  // namespace tamiz
