// The packed weight of an op: its attributes and its shape. Shared by all ops that multiply with
// one.
#pragma once

#include "base/attributes.h"
#include "base/error.h"
#include "base/shapes.h"
#include "base/tensor.h"
#include "kernels/affine/affine.h"
#include "kernels/products/formats.h"

namespace tamiz {

struct PackedWeight {
  int bits;
  int64_t n, k;
  int scale_bits = 16;
  Format format = Format::integers;  // others are not of `bits` and `scale_bits`
  Affine affine{};                   // where its bits are not 0, `format` counts nothing
  std::string format_name;

  /// Of an op with the attributes bits, scale_bits, format, n and k.
  explicit PackedWeight(const Attributes& attributes)
      : PackedWeight(0, positive(attributes, "n"), positive(attributes, "k")) {
    const std::string& name = attributes.strings.at("format");
    if (name.empty()) {
      bits = four_or_eight(attributes, "bits");
      scale_bits = scale_bits_of(attributes, bits);
      return;
    }
    if (attributes.ints.at("bits") != 0) {
      throw Error("attribute 'bits' is " + std::to_string(attributes.ints.at("bits")) +
                  ", expected none beside 'format'");
    }
    format_name = name;
    if (set_affine(name)) return;
    set_format(name);
    const int64_t block = spec().block();
    if (format != Format::integers && k % block != 0 && !spec().number()) {
      throw Error("attribute 'k' is " + std::to_string(k) + ", expected a multiple of " +
                  std::to_string(block) + " for format " + name);
    }
  }

  PackedWeight(int weight_bits, int64_t outputs, int64_t inputs)
      : bits(weight_bits), n(outputs), k(inputs) {}

  int64_t groups() const { return group_count(k); }
  int64_t tiles() const { return tile_count(n); }
  const FormatSpec& spec() const { return spec_of(format); }
  bool is_affine() const { return affine.bits != 0; }
  int64_t tile_bytes() const {
    if (is_affine()) return affine.tile_bytes(groups());
    if (format != Format::integers) return groups() * spec().group_bytes();
    return tamiz::tile_bytes(groups(), bits, scale_bits);
  }
  int64_t bytes() const { return tiles() * tile_bytes(); }

  void check(const Tensor& weight) const { check("weight", weight); }

  void check(const char* name, const Tensor& weight) const {
    if (weight.shape == Shape{2, {tiles(), tile_bytes()}}) return;
    const std::string kind =
        !format_name.empty()
            ? ", format = " + format_name
            : ", bits = " + std::to_string(bits) + (scale_bits == 16 ? "" : ", scale_bits = 8");
    const std::string meaning =
        "tiles and tile bytes of n = " + std::to_string(n) + ", k = " + std::to_string(k) + kind;
    expect_shape(name, weight, Shape{2, {tiles(), tile_bytes()}}, meaning.c_str());
  }

  /// The value of an attribute that is a number of bits.
  static int four_or_eight(const Attributes& attributes, const char* name) {
    const int64_t value = attributes.ints.at(name);
    if (value == 4 || value == 8) return static_cast<int>(value);
    throw Error("attribute '" + std::string(name) + "' is " + std::to_string(value) +
                ", expected 4 or 8");
  }

  /// The value of 'scale_bits' of a weight of `weight_bits` bits.
  static int scale_bits_of(const Attributes& attributes, int weight_bits) {
    const int64_t value = attributes.ints.at("scale_bits");
    if (value == 16 || (value == 8 && weight_bits == 4)) return static_cast<int>(value);
    throw Error("attribute 'scale_bits' is " + std::to_string(value) + ", expected 16" +
                (weight_bits == 4 ? " or 8" : ": bits is 8"));
  }

  /// The value of an attribute that counts something.
  static int64_t positive(const Attributes& attributes, const char* name) {
    constexpr int64_t kMost = int64_t{1} << 31;
    const int64_t value = attributes.ints.at(name);
    if (value >= 1 && value < kMost) return value;
    throw Error("attribute '" + std::string(name) + "' is " + std::to_string(value) +
                ", expected 1 to 2^31 - 1");
  }

 private:
  /// Throws Error where no format has this name.
  void set_format(const std::string& name) {
    const struct {
      const char* name;
      int bits, scale_bits;
    } integers[] = {{"q4_1", 4, 16}, {"q4_units", 4, 8}, {"q8_0", 8, 16}};
    std::string known;
    for (const auto& one : integers) {
      known += one.name + std::string(", ");
      if (name != one.name) continue;
      bits = one.bits;
      scale_bits = one.scale_bits;
      return;
    }
    for (int i = 1; i < static_cast<int>(Format::count); ++i) {
      format = static_cast<Format>(i);
      if (name == spec().name) return;
      known += (i == 1 ? "" : ", ") + std::string(spec().name);
    }
    throw Error("attribute 'format' is '" + name + "', expected one of: " + known +
                ", or an affine format such as affine4_32z");
  }

  /// affine, 2, 4 or 8 bits, _, inputs that share a scale: a power of two from 16 to 1024 or "row";
  /// h for scales of fp16; z or f for zero points that are bytes or floats. Whether `name` is such.
  bool set_affine(const std::string& name) {
    const std::string start = "affine";
    if (name.compare(0, start.size(), start) != 0 || name.size() < start.size() + 4) return false;
    Affine found;
    found.bits = name[start.size()] - '0';
    if (found.bits != 2 && found.bits != 4 && found.bits != 8) return false;
    if (name[start.size() + 1] != '_') return false;
    std::string rest = name.substr(start.size() + 2);
    const auto take = [&rest](char flag) {
      const bool there = !rest.empty() && rest.back() == flag;
      if (there) rest.pop_back();
      return there;
    };
    found.zero = take('z') ? Affine::bytes : take('f') ? Affine::floats : Affine::none;
    found.halves = take('h');
    found.parts = rest == "16";
    constexpr int kShifts = 6, kWholeRow = 62;
    while (found.shift < kShifts && rest != std::to_string(kGroup << found.shift)) ++found.shift;
    if (rest == "row") found.shift = kWholeRow;
    if (found.parts) found.shift = 0;
    if (found.shift == kShifts) return false;
    affine = found;
    return true;
  }
};

}  // namespace tamiz
