// Weights of a format from floats, 16 outputs at a time; `lattice.h` searches a group.
//
// A super-block has d, and whole numbers s of its groups: scale = d s, minimum = -dmin m. d is the
// least that holds the largest scale; then, in turn, the best s and m for d and dmin are chosen
// among the nearest whole numbers, and the best d and dmin for all s, m and quants by regression.
#include "ops/products/format_fit.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/products/packing.h"
#include "ops/products/lattice.h"

namespace tamiz {
namespace {

using namespace lattice;

/// How often factors and whole numbers are chosen anew.
constexpr int kTurns = 3;
/// -8 / 256 and 1 / 256: what a minimum and a scale count of the unit of their output.
constexpr float kUnitStep = 1.0f / 256, kMinimumStep = 8;

/// IEEE half precision, rounded to nearest, ties to even.
uint16_t to_half(float x) {
  if (!(std::abs(x) <= 65504.0f)) {
    throw Error("a group needs a scale or minimum above 65504, fp16's largest");
  }
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const double size = std::abs(static_cast<double>(x));
  if (size == 0) return sign;
  int exponent = 0;
  std::frexp(size, &exponent);
  exponent = std::max(exponent, -13);  // of the smallest normal number
  const double ulps = std::nearbyint(std::ldexp(size, 11 - exponent));
  return static_cast<uint16_t>(sign | static_cast<uint16_t>(ulps + 1024.0 * (exponent + 13)));
}

float from_half(uint16_t half) {
  uint8_t bytes[2];
  std::memcpy(bytes, &half, sizeof(half));
  return half_to_float(bytes);
}

struct Halves {
  uint16_t bits[kLanes];
  Lanes values;

  explicit Halves(const Lanes& x) {
    for (int l = 0; l < kLanes; ++l) values[l] = from_half(bits[l] = to_half(x[l]));
  }
};

/// A group's whole numbers s and m.
struct Counts {
  Lanes s, m;
};

class Fitter {
 public:
  Fitter(const FitFormat& format, const float* weight, const float* cost, int64_t n, int64_t k,
         bool search)
      : format_(format),
        levels_(format.levels, format.linear),
        weight_(weight),
        n_(n),
        k_(k),
        search_(search),
        padded_((k + format.block - 1) / format.block * format.block),
        groups_(padded_ / format.group),
        x_(padded_),
        cost_(padded_, 0.0f) {
    std::copy_n(cost, k, cost_.begin());
    const int64_t blocks = format.home == ScaleHome::output ? 1 : padded_ / format.block;
    made_.quants.resize(n * k);
    made_.scales.resize(n * groups_);
    if (format.minimum) made_.minima.resize(n * groups_);
    if (format.home == ScaleHome::group) return;
    made_.d.resize(n * blocks);
    if (format.minimum && format.home == ScaleHome::super_block) made_.dmin.resize(n * blocks);
  }

  FittedFormat run() {
    for (first_ = 0; first_ < n_; first_ += kLanes) {
      load();
      if (format_.home == ScaleHome::group) {
        for (int64_t g = 0; g < groups_; ++g) fit_group(g);
      } else {
        const int64_t block = format_.home == ScaleHome::output ? padded_ : format_.block;
        for (int64_t at = 0; at < padded_; at += block) {
          fit_block(at / format_.group, block / format_.group, at / block);
        }
      }
    }
    return std::move(made_);
  }

 private:
  int lanes() const { return static_cast<int>(std::min<int64_t>(kLanes, n_ - first_)); }

  void load() {
    for (int64_t k = 0; k < k_; ++k) {
      for (int l = 0; l < lanes(); ++l) x_[k][l] = weight_[(first_ + l) * k_ + k];
    }
  }

  Group group(int64_t g) const {
    const int64_t at = g * format_.group;
    return {&x_[at], &cost_[at], static_cast<int>(format_.group)};
  }

  Lattice find(int64_t g, bool below_zero) const {
    const Group at = group(g);
    Search search(levels_, at, format_.minimum, below_zero);
    return search_ ? search.best() : search.nearest();
  }

  void fit_group(int64_t g) {
    const Lattice found = find(g, false);
    const Halves scale(found.scale), minimum(found.minimum);
    store_quants(g, {scale.values, minimum.values});
    for (int l = 0; l < lanes(); ++l) {
      made_.scales[(first_ + l) * groups_ + g] = scale.bits[l];
      if (format_.minimum) made_.minima[(first_ + l) * groups_ + g] = minimum.bits[l];
    }
  }

  /// Groups that share factors.
  void fit_block(int64_t begin, int64_t count, int64_t block) {
    found_.resize(count);
    counts_.resize(count);
    best_.resize(count);
    Lanes scale = {}, depth = {};
    for (int64_t g = 0; g < count; ++g) {
      found_[g] = find(begin + g, true);
      const Lanes s = found_[g].scale;
      const auto larger = (s < 0.0f ? -s : s) > (scale < 0.0f ? -scale : scale);
      scale = larger ? s : scale;
      depth = greatest(depth, -found_[g].minimum);
    }
    const float end = static_cast<float>(format_.lowest < 0 ? format_.lowest : format_.highest);
    Lanes d = scale / end, dmin = depth / static_cast<float>(format_.highest);
    Lanes least_error = filled(std::numeric_limits<float>::infinity());
    Lanes best_d = {}, best_dmin = {};
    for (int turn = 0; turn < (search_ ? kTurns : 1); ++turn) {
      round_factors(d, dmin);
      Lanes total = {};
      for (int64_t g = 0; g < count; ++g) total += choose(begin, g, d, dmin);
      const auto better = total < least_error;
      least_error = better ? total : least_error;
      best_d = better ? d : best_d;
      best_dmin = better ? dmin : best_dmin;
      for (int64_t g = 0; g < count; ++g) {
        best_[g].s = better ? counts_[g].s : best_[g].s;
        best_[g].m = better ? counts_[g].m : best_[g].m;
      }
      regress(begin, count, d, dmin);
    }
    store(begin, count, block, best_d, best_dmin);
  }

  /// d and dmin as the file holds them; one unit of an output holds both.
  void round_factors(Lanes& d, Lanes& dmin) const {
    if (format_.home == ScaleHome::super_block) {
      d = Halves(d).values;
      dmin = Halves(dmin).values;
      return;
    }
    d = Halves(greatest(d, dmin / kMinimumStep) / kUnitStep).values * kUnitStep;
    dmin = d * kMinimumStep;
  }

  Lattice lattice(const Counts& counts, const Lanes& d, const Lanes& dmin) const {
    return {d * counts.s, -dmin * counts.m};
  }

  /// The best whole numbers of a group near its own lattice; its error.
  Lanes choose(int64_t begin, int64_t g, const Lanes& d, const Lanes& dmin) {
    const float low = static_cast<float>(format_.lowest),
                high = static_cast<float>(format_.highest);
    const Lanes s = rounded(clamped(found_[g].scale * inverse(d), low - 1, high + 1));
    const Lanes m = rounded(clamped(-found_[g].minimum * inverse(dmin), 0.0f, high + 1));
    const int reach = search_ ? 1 : 0, reach_m = format_.minimum ? reach : 0;
    Lanes least_error = filled(std::numeric_limits<float>::infinity());
    for (int i = -reach; i <= reach; ++i) {
      for (int j = -reach_m; j <= reach_m; ++j) {
        const Counts tried = {clamped(s + static_cast<float>(i), low, high),
                              clamped(m + static_cast<float>(j), 0.0f, high)};
        const Lanes left = error(levels_, group(begin + g), lattice(tried, d, dmin));
        const auto better = left < least_error;
        least_error = better ? left : least_error;
        counts_[g].s = better ? tried.s : counts_[g].s;
        counts_[g].m = better ? tried.m : counts_[g].m;
      }
    }
    return least_error;
  }

  /// The best d and dmin for the quants and whole numbers of `counts_`.
  void regress(int64_t begin, int64_t count, Lanes& d, Lanes& dmin) const {
    Lanes ss = {}, sm = {}, mm = {}, sx = {}, mx = {};
    for (int64_t g = 0; g < count; ++g) {
      const Counts& c = counts_[g];
      const Lattice at = lattice(c, d, dmin);
      const Group weights = group(begin + g);
      const Sums sums(levels_, weights, at.scale, at.minimum);
      Lanes cost = {}, x = {};
      for (int k = 0; k < weights.n; ++k) {
        cost += filled(weights.cost[k]);
        x += weights.cost[k] * weights.x[k];
      }
      ss += c.s * c.s * sums.square;
      sm += c.s * c.m * sums.value;
      mm += c.m * c.m * cost;
      sx += c.s * sums.product;
      mx += c.m * x;
    }
    if (format_.home == ScaleHome::output) {  // dmin = kMinimumStep d
      const Lanes square = ss - 2 * kMinimumStep * sm + kMinimumStep * kMinimumStep * mm;
      d = square > 0.0f ? (sx - kMinimumStep * mx) * inverse(square) : d;
      dmin = d * kMinimumStep;
      return;
    }
    const Lanes spread = ss * mm - sm * sm;
    const auto both = spread > 1e-6f * ss * mm;
    const Lanes per_spread = inverse(both ? spread : Lanes{});
    const Lanes alone = ss > 0.0f ? sx * inverse(ss) : d;
    d = both ? (mm * sx - sm * mx) * per_spread : mm > 0.0f ? d : alone;
    dmin = both ? greatest((sm * sx - ss * mx) * per_spread, Lanes{}) : dmin;
  }

  void store(int64_t begin, int64_t count, int64_t block, const Lanes& d, const Lanes& dmin) {
    for (int64_t g = 0; g < count; ++g) {
      store_quants(begin + g, lattice(best_[g], d, dmin));
      for (int l = 0; l < lanes(); ++l) {
        const int64_t at = (first_ + l) * groups_ + begin + g;
        made_.scales[at] = static_cast<uint16_t>(static_cast<int>(best_[g].s[l]));
        if (format_.minimum) made_.minima[at] = static_cast<uint16_t>(best_[g].m[l]);
      }
    }
    const bool of_output = format_.home == ScaleHome::output;
    const Halves factor(of_output ? d / kUnitStep : d), other(dmin);
    const int64_t blocks = of_output ? 1 : padded_ / format_.block;
    for (int l = 0; l < lanes(); ++l) {
      made_.d[(first_ + l) * blocks + block] = factor.bits[l];
      if (!made_.dmin.empty()) made_.dmin[(first_ + l) * blocks + block] = other.bits[l];
    }
  }

  void store_quants(int64_t g, const Lattice& at) {
    const Lanes per_scale = inverse(at.scale);
    const int64_t end = std::min(k_, (g + 1) * format_.group);
    for (int64_t k = g * format_.group; k < end; ++k) {
      const Lanes q = levels_.index(levels_.nearest((x_[k] - at.minimum) * per_scale));
      for (int l = 0; l < lanes(); ++l) {
        made_.quants[(first_ + l) * k_ + k] = static_cast<uint8_t>(q[l]);
      }
    }
  }

  const FitFormat& format_;
  const Levels levels_;
  const float* const weight_;
  const int64_t n_, k_;
  const bool search_;
  const int64_t padded_, groups_;
  std::vector<Lanes> x_;
  std::vector<float> cost_;
  int64_t first_ = 0;  // of the 16 outputs
  std::vector<Lattice> found_;
  std::vector<Counts> counts_, best_;
  FittedFormat made_;
};

}  // namespace

FittedFormat fit_format(const FitFormat& format, const float* weight, const float* cost, int64_t n,
                        int64_t k, bool search) {
  return Fitter(format, weight, cost, n, k, search).run();
}

void round_with_feedback(const FitFormat& format, const float* weight, const float* r,
                         const float* scale, const float* minimum, int64_t n, int64_t width,
                         float* carried, uint8_t* quants) {
  const Levels levels(format.levels, format.linear);
  const int64_t groups = width / format.group;
  std::vector<Lanes> x(width), left(width);
  for (int64_t first = 0; first < n; first += kLanes) {
    const int lanes = static_cast<int>(std::min<int64_t>(kLanes, n - first));
    Lanes s = {}, m = {}, per_scale = {};
    for (int l = 0; l < lanes; ++l) {
      for (int64_t j = 0; j < width; ++j) {
        x[j][l] = weight[(first + l) * width + j];
        left[j][l] = carried[(first + l) * width + j];
      }
    }
    for (int64_t j = 0; j < width; ++j) {
      if (j % format.group == 0) {
        for (int l = 0; l < lanes; ++l) {
          s[l] = scale[(first + l) * groups + j / format.group];
          m[l] = minimum[(first + l) * groups + j / format.group];
        }
        per_scale = inverse(s);
      }
      const float* const row = r + j * width;
      const Lanes target = x[j] + left[j] / row[j];
      const Lanes value = levels.nearest((target - m) * per_scale);
      const Lanes q = levels.index(value);
      const Lanes e = x[j] - s * value - m;
      for (int64_t i = j + 1; i < width; ++i) left[i] += e * row[i];
      for (int l = 0; l < lanes; ++l) {
        carried[(first + l) * width + j] = e[l];
        quants[(first + l) * width + j] = static_cast<uint8_t>(q[l]);
      }
    }
  }
}

}  // namespace tamiz
