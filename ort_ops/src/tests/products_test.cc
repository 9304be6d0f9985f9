#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/dispatch.h"
#include "kernels/products/bytes.h"
#include "kernels/products/matmul.h"
#include "tests/check.h"
#include "tests/tests.h"

namespace tamiz::test {
namespace {

/// Quantised rows with memory of their own.
struct Rows {
  std::vector<int16_t> quants;
  std::vector<float> scales, sums;
  std::vector<uint8_t> kept;
  std::vector<int32_t> half_sums;
  QuantRows view;

  Rows(int64_t rows, int64_t groups)
      : quants(static_cast<size_t>(rows * groups * kGroup)),
        scales(static_cast<size_t>(rows * groups)),
        sums(scales.size()),
        kept(scales.size()),
        half_sums(2 * scales.size()),
        view{rows,        groups,      quants.data(),   scales.data(),
             sums.data(), kept.data(), half_sums.data()} {}
};

struct Case {
  int bits, scale_bits;
  int64_t n, k, rows;
};

std::vector<uint8_t> random_weight(const Case& c, std::mt19937& random) {
  const int64_t groups = group_count(c.k), tile = tile_bytes(groups, c.bits, c.scale_bits);
  std::vector<uint8_t> weight(static_cast<size_t>(tile_count(c.n) * tile));
  for (uint8_t& byte : weight) byte = static_cast<uint8_t>(random());
  // Scales, minima and units in half precision: 0.0001 to 0.03.
  const auto half = [&](uint8_t* to) {
    const auto bits = static_cast<uint16_t>(0x0800 + random() % 0x1800);
    std::memcpy(to, &bits, sizeof bits);
  };
  for (int64_t t = 0; t < tile_count(c.n); ++t) {
    uint8_t* const at = weight.data() + t * tile;
    for (int64_t g = 0; g < groups && c.scale_bits == 16; ++g) {
      uint8_t* const scales = at + g * group_bytes(c.bits) + quant_bytes(c.bits);
      for (int64_t i = 0; i < (c.bits == 4 ? 2 : 1) * kTile; ++i) half(scales + 2 * i);
    }
    uint8_t* const units = at + groups * group_bytes(c.bits, c.scale_bits);
    for (int64_t i = 0; i < kTile && c.scale_bits == 8; ++i) half(units + 2 * i);
  }
  return weight;
}

double weight_value(const Case& c, const std::vector<uint8_t>& weight, int64_t o, int64_t i) {
  const int64_t groups = group_count(c.k);
  const uint8_t* const tile = weight.data() + o / kTile * tile_bytes(groups, c.bits, c.scale_bits);
  const uint8_t* const group = tile + i / kGroup * group_bytes(c.bits, c.scale_bits);
  const double scale = weight_scale(group, c.bits, o % kTile, c.scale_bits);
  const double minimum = weight_minimum(group, c.bits, o % kTile, c.scale_bits);
  return (scale * weight_quant(group, c.bits, o % kTile, i % kGroup) + minimum) *
         weight_unit(tile, groups, o % kTile, c.scale_bits);
}

std::vector<float> multiply(const Case& c, const std::vector<uint8_t>& weight,
                            const std::vector<float>& x, const std::vector<float>& bias,
                            const Kernels& kernels) {
  Rows rows(c.rows, group_count(c.k));
  for (int64_t r = 0; r < c.rows; ++r) {
    kernels.matmul.quantize(x.data() + r * c.k, c.k, nullptr, 1, rows.view, r);
  }
  std::vector<float> y(static_cast<size_t>(c.rows * c.n));
  MultiplyArgs args;
  args.weight = weight.data();
  args.bits = c.bits;
  args.scale_bits = c.scale_bits;
  args.tiles = tile_count(c.n);
  args.x = rows.view;
  args.first_row = 0;
  args.rows = c.rows;
  args.skip = false;
  args.bias = bias.data();
  args.outputs = c.n;
  args.y = y.data();
  args.y_stride = c.n;
  kernels.matmul.multiply(args);
  return y;
}

void test_case(const Case& c) {
  const std::string name = std::to_string(c.bits) + " bits, scales of " +
                           std::to_string(c.scale_bits) + ", " + std::to_string(c.rows) + " rows";
  std::mt19937 random(7);
  const std::vector<uint8_t> weight = random_weight(c, random);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(c.rows * c.k)), bias(static_cast<size_t>(c.n));
  for (float& value : x) value = normal(random);
  for (float& value : bias) value = normal(random);
  const std::vector<float> expected = multiply(c, weight, x, bias, kernels("scalar"));
  for (int64_t r = 0; r < c.rows; ++r) {
    for (int64_t o = 0; o < c.n; ++o) {
      double sum = bias[o], size = std::abs(bias[o]);
      for (int64_t i = 0; i < c.k; ++i) {
        const double product = weight_value(c, weight, o, i) * x[r * c.k + i];
        sum += product;
        size += std::abs(product);
      }
      // An activation is rounded to max|x| / 32512, a relative error of some 2^-14 of a product.
      CHECK(std::abs(expected[r * c.n + o] - sum) <= size * 0x1p-12, name.c_str());
    }
  }
  for (const std::string& isa : runnable_isas()) {
    const std::vector<float> found = multiply(c, weight, x, bias, kernels(isa.c_str()));
    const bool same = !std::memcmp(found.data(), expected.data(), found.size() * sizeof(float));
    CHECK(same, (isa + ", " + name).c_str());
  }
}

/// Rows quantised to bytes, with memory of their own.
struct BlocksOfRows {
  std::vector<int8_t> quants;
  std::vector<float> scales;
  std::vector<int32_t> half_sums;
  ByteRows view;

  BlocksOfRows(int64_t rows, int64_t groups)
      : quants(static_cast<size_t>(whole_blocks(rows) * groups * kGroup)),
        scales(static_cast<size_t>(whole_blocks(rows) * groups)),
        half_sums(2 * scales.size()),
        view{rows, groups, quants.data(), scales.data(), half_sums.data()} {}
};

/// `multiply` of rows of bytes, as many in a call as a task has.
void multiply_blocks(const ByteKernels& kernels, MultiplyArgs args, const ByteRows& x,
                     int64_t most) {
  for (const int64_t rows = args.rows; args.first_row < rows; args.first_row += most) {
    args.rows = std::min(most, rows - args.first_row);
    kernels.multiply(args, x);
    args.y += most * args.y_stride;
  }
}

/// y of a weight of any format, whose activations have 16 bits or, with `bytes`, 8.
std::vector<float> multiply_format(Format format, int64_t n, int64_t k, int64_t count,
                                   const std::vector<uint8_t>& weight, const std::vector<float>& x,
                                   bool bytes, bool masked, const Kernels& kernels) {
  const int64_t groups = group_count(k);
  Rows rows(count, groups);
  BlocksOfRows blocks(count, groups);
  std::vector<uint8_t> mask(static_cast<size_t>(k / 4), 1);
  for (size_t i = 0; i < mask.size(); i += 3) mask[i] = 0;
  const auto quantize = bytes ? kernels.matmul.quantize_bytes : kernels.matmul.quantize;
  const bool in_blocks = bytes && !masked && kernels.bytes && !spec_of(format).number();
  for (int64_t r = 0; r < count; ++r) {
    quantize(x.data() + r * k, k, masked ? mask.data() : nullptr, 4, rows.view, r);
    if (in_blocks) kernels.bytes->quantize(x.data() + r * k, k, nullptr, 1, blocks.view, r);
  }
  std::vector<float> y(static_cast<size_t>(count * n));
  MultiplyArgs args;
  args.weight = weight.data();
  args.format = format;
  args.bits = 4;
  args.tiles = tile_count(n);
  args.x = rows.view;
  args.first_row = 0;
  args.rows = count;
  args.skip = masked;
  args.bias = nullptr;
  args.outputs = n;
  args.y = y.data();
  args.y_stride = n;
  if (in_blocks) {
    const bool many = count >= kernels.bytes->many;
    multiply_blocks(*kernels.bytes, args, blocks.view, many ? kByteRowBlock : 2 * kByteRows);
  } else {
    kernels.matmul.multiply(args);
  }
  return y;
}

/// Every level gives the bits of the scalar one, with every format.
void test_format(Format format) {
  constexpr int64_t kOutputs = 40, kInputs = 512;
  std::mt19937 random(3);
  const int64_t size = group_count(kInputs) * spec_of(format).group_bytes();
  std::vector<uint8_t> weight(static_cast<size_t>(tile_count(kOutputs) * size));
  for (uint8_t& byte : weight) byte = random() & 0x3f;  // factors in half precision: below 2
  const FormatSpec& spec = spec_of(format);
  const auto block = static_cast<size_t>(8 * spec.group_bytes());
  for (size_t i = 0; spec.super_block() && i < weight.size(); ++i) {
    const auto at = static_cast<int64_t>(i % block);
    const bool factor = at >= spec.factors_at() && at < spec.planes_at();
    if (!factor) weight[i] = static_cast<uint8_t>(random());  // all bits of quants and small scales
    if (factor && spec.factor_bytes() == 4 && at % 4 == 3) weight[i] = 0x3d;  // about 0.05
    if (spec.scales == Scales::small_float && at < spec.factors_at()) weight[i] &= 0x7f;  // no sign
  }
  std::normal_distribution<float> normal;
  std::vector<float> x(83 * kInputs);
  for (float& value : x) value = normal(random);
  for (const int64_t rows : {1, 2, 3, 4, 5, 8, 15, 21, 37, 83}) {
    for (const bool bytes : {false, true}) {
      for (const bool masked : {false, true}) {
        if (masked && rows > 1) continue;
        const auto run = [&](const char* isa) {
          return multiply_format(format, kOutputs, kInputs, rows, weight, x, bytes, masked,
                                 kernels(isa));
        };
        const std::vector<float> expected = run("scalar");
        for (const std::string& isa : runnable_isas()) {
          const std::vector<float> found = run(isa.c_str());
          const bool same =
              !std::memcmp(found.data(), expected.data(), found.size() * sizeof(float));
          const std::string name = isa + ", " + spec.name + ", rows " + std::to_string(rows) +
                                   (bytes ? ", bytes" : "") + (masked ? ", masked" : "");
          CHECK(same, name.c_str());
        }
      }
    }
  }
}

}  // namespace

void test_products() {
  for (const int64_t rows : {1, 3, 8, 21}) {
    for (const auto& [bits, scale_bits] : {std::pair{4, 16}, std::pair{4, 8}, std::pair{8, 16}}) {
      test_case({bits, scale_bits, 40, 100, rows});
    }
  }
  for (int format = 1; format < static_cast<int>(Format::count); ++format) {
    test_format(static_cast<Format>(format));
  }
}

}  // namespace tamiz::test
