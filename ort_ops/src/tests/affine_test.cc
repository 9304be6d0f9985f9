#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/dispatch.h"
#include "tests/check.h"
#include "tests/tests.h"

namespace tamiz::test {
namespace {

constexpr int64_t kOutputs = 40, kInputs = 500;

/// Random tiles: numbers of at most 2, in single and in half precision, where they are factors.
std::vector<uint8_t> random_tiles(const Affine& affine) {
  std::mt19937 random(3);
  const int64_t size = tile_count(kOutputs) * affine.tile_bytes(group_count(kInputs));
  std::vector<uint8_t> weight(static_cast<size_t>(size));
  for (uint8_t& byte : weight) byte = random() & 0x3f;
  return weight;
}

std::vector<float> multiply(const Affine& affine, const std::vector<uint8_t>& weight,
                            const std::vector<float>& x, int64_t count, bool masked,
                            const char* isa) {
  const Kernels& level = kernels(isa);
  const int64_t groups = group_count(kInputs);
  const auto size = static_cast<size_t>(count * groups);
  std::vector<int16_t> quants(size * kGroup);
  std::vector<float> scales(size), sums(size);
  std::vector<uint8_t> kept(size), mask(kInputs, 1);
  std::vector<int32_t> half_sums(2 * size);
  for (size_t i = 64; i < 128; ++i) mask[i] = 0;
  for (size_t i = 0; i < mask.size(); i += 3) mask[i] = 0;
  const QuantRows rows{count,       groups,      quants.data(),   scales.data(),
                       sums.data(), kept.data(), half_sums.data()};
  for (int64_t r = 0; r < count; ++r) {
    level.matmul.quantize(x.data() + r * kInputs, kInputs, masked ? mask.data() : nullptr, 1, rows,
                          r);
  }
  std::vector<float> bias(kOutputs, 0.5f), y(static_cast<size_t>(count * kOutputs));
  MultiplyArgs args{};
  args.weight = weight.data();
  args.tiles = tile_count(kOutputs);
  args.x = rows;
  args.rows = count;
  args.skip = masked;
  args.bias = bias.data();
  args.outputs = kOutputs;
  args.y = y.data();
  args.y_stride = kOutputs;
  affine_kernels(level).multiply(args, affine);
  return y;
}

void test_case(const Affine& affine, const std::string& name) {
  const std::vector<uint8_t> weight = random_tiles(affine);
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> x(21 * kInputs);
  for (float& value : x) value = normal(random);
  for (const int64_t rows : {1, 2, 3, 8, 21}) {
    for (const bool masked : {false, true}) {
      if (masked && rows > 1) continue;
      const std::vector<float> expected = multiply(affine, weight, x, rows, masked, "scalar");
      for (const std::string& isa : runnable_isas()) {
        const std::vector<float> found = multiply(affine, weight, x, rows, masked, isa.c_str());
        const bool same = !std::memcmp(found.data(), expected.data(), found.size() * sizeof(float));
        CHECK(same, (isa + ", " + name + ", rows " + std::to_string(rows)).c_str());
      }
    }
  }
}

}  // namespace

void test_affine() {
  for (const int bits : {2, 4, 8}) {
    for (const Affine::Zero zero : {Affine::none, Affine::bytes, Affine::floats}) {
      for (const bool halves : {false, true}) {
        for (const int shift : {-1, 0, 1, 2, 3, 4, 62}) {
          Affine affine;
          affine.bits = bits;
          affine.zero = zero;
          affine.halves = halves;
          affine.parts = shift < 0;
          affine.shift = std::max(shift, 0);
          test_case(affine, std::to_string(bits) + " bits, shift " + std::to_string(shift));
        }
      }
    }
  }
}

}  // namespace tamiz::test
