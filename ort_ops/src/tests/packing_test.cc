#include "kernels/products/packing.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/check.h"
#include "tests/tests.h"

namespace tamiz::test {
namespace {

/// The value of a half-precision number, from its definition.
double half_value(uint16_t half) {
  const int exponent = half >> 10 & 31;
  const double mantissa = half & 1023;
  const double sign = half >> 15 ? -1 : 1;
  if (exponent == 31) return mantissa ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

void put_half(uint8_t* to, uint16_t half) {
  to[0] = static_cast<uint8_t>(half);
  to[1] = static_cast<uint8_t>(half >> 8);
}

}  // namespace

void test_packing() {
  CHECK(group_bytes(4) == 320, "4 bits");
  CHECK(group_bytes(4, 8) == 288, "4 bits with scales of 8");
  CHECK(group_bytes(8) == 544, "8 bits");
  CHECK(tile_bytes(3, 4, 8) == 3 * 288 + 32, "units after the groups");
  CHECK(group_count(1) == 1 && group_count(32) == 1 && group_count(33) == 2, "groups");
  CHECK(tile_count(16) == 1 && tile_count(17) == 2, "tiles");

  for (int half = 0; half < 65536; ++half) {
    uint8_t bytes[2];
    put_half(bytes, static_cast<uint16_t>(half));
    const double expected = half_value(static_cast<uint16_t>(half));
    const double found = half_to_float(bytes);
    const bool same = std::isnan(expected) ? std::isnan(found) : found == expected;
    CHECK(same && std::signbit(found) == std::signbit(half >> 15 ? -1.0 : 1.0),
          std::to_string(half).c_str());
  }

  // Quants of 4 bits: output o, input i have (5 o + 3 i) mod 16, written as the format describes.
  std::vector<uint8_t> group(static_cast<size_t>(group_bytes(8)), 0);
  const auto quant = [](int64_t o, int64_t i) { return static_cast<int>((5 * o + 3 * i) % 16); };
  for (int64_t o = 0; o < kTile; ++o) {
    for (int64_t i = 0; i < kGroup; ++i) {
      const int64_t vector = i / 8, rest = i % 8;
      const int shift = rest < 4 ? 0 : 4;
      group[64 * vector + 4 * o + rest % 4] |= static_cast<uint8_t>(quant(o, i) << shift);
    }
    put_half(&group[256 + 2 * o], static_cast<uint16_t>(0x3c00 + o));         // 1 + o / 1024
    put_half(&group[256 + 2 * (16 + o)], static_cast<uint16_t>(0xc000 + o));  // -2 - o / 512
  }
  for (int64_t o = 0; o < kTile; ++o) {
    const std::string at = "output " + std::to_string(o);
    for (int64_t i = 0; i < kGroup; ++i) {
      CHECK(weight_quant(group.data(), 4, o, i) == quant(o, i), at.c_str());
    }
    CHECK(weight_scale(group.data(), 4, o) == 1 + o / 1024.0f, at.c_str());
    CHECK(weight_minimum(group.data(), 4, o) == -2 - o / 512.0f, at.c_str());
  }

  // Scales and minima of 8 bits count units, which follow the groups.
  std::vector<uint8_t> tile(static_cast<size_t>(tile_bytes(1, 4, 8)), 0);
  for (int64_t o = 0; o < kTile; ++o) {
    tile[256 + o] = static_cast<uint8_t>(o + 1);
    tile[272 + o] = static_cast<uint8_t>(2 * o);
    put_half(&tile[288 + 2 * o], static_cast<uint16_t>(0x3c00 + o));
  }
  for (int64_t o = 0; o < kTile; ++o) {
    const std::string at = "output " + std::to_string(o);
    CHECK(weight_scale(tile.data(), 4, o, 8) == o + 1, at.c_str());
    CHECK(weight_minimum(tile.data(), 4, o, 8) == -16.0f * o, at.c_str());
    CHECK(weight_unit(tile.data(), 1, o, 8) == (1 + o / 1024.0f) / 256, at.c_str());
  }

  // Quants of 8 bits are stored with 128 added.
  for (int64_t o = 0; o < kTile; ++o) {
    for (int64_t i = 0; i < kGroup; ++i) {
      group[64 * (i / 4) + 4 * o + i % 4] = static_cast<uint8_t>(7 * o + i);
    }
  }
  for (int64_t o = 0; o < kTile; ++o) {
    for (int64_t i = 0; i < kGroup; ++i) {
      CHECK(weight_quant(group.data(), 8, o, i) == 7 * o + i - 128, "8 bits");
    }
  }
}

}  // namespace tamiz::test
